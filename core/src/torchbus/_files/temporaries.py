"""Temporary files beside the file that each becomes: locked as long as their process lives, so that those of dead ones are known."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile

from torchbus._files.locks import try_lock

SUFFIX = ".torchbus"
NAME = re.compile(rf"\..+\.[a-z0-9_]{{8}}{re.escape(SUFFIX)}")


def make(folder: str, name: str) -> tuple[int, str]:
    """An empty file, hidden, and the open descriptor that locks it. Raises OSError."""
    while True:
        descriptor, path = tempfile.mkstemp(dir=folder, prefix=f".{name}.", suffix=SUFFIX)
        try_lock(descriptor)
        if os.path.exists(path):
            return descriptor, path
        os.close(descriptor)  # swept between the two


def sweep(folder: str) -> None:
    """Remove those of processes that were killed. Where files can't be locked, none is known to be dead, and all stay."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for name in [entry.name for entry in entries if NAME.fullmatch(entry.name)]:
            with contextlib.suppress(OSError):
                _remove_dead(os.path.join(folder, name))


def _remove_dead(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if try_lock(descriptor):
            os.unlink(path)
    finally:
        os.close(descriptor)
