"""Temporary files next to their target files.

Their process locks them as long as it lives. So a file without a lock belongs to a dead process.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile

from torchbus._files.locks import try_lock

SUFFIX = ".torchbus"
NAME = re.compile(rf"\..+\.[a-z0-9_]{{8}}{re.escape(SUFFIX)}")


def make(folder: str, name: str) -> tuple[int, str]:
    """Make an empty hidden file; return the descriptor that locks it, and its path.

    Raises OSError.
    """
    while True:
        descriptor, path = tempfile.mkstemp(dir=folder, prefix=f".{name}.", suffix=SUFFIX)
        try_lock(descriptor)
        if os.path.exists(path):
            return descriptor, path
        os.close(descriptor)  # another process swept it before the lock


def sweep(folder: str) -> None:
    """Remove the temporary files of killed processes.

    If the file system has no locks, no file is known to be left over, and all stay.
    """
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
