"""Writes a file next to its path and renames it, so that a reader never sees half of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from torchbus._files import temporaries
from torchbus._files.paths import is_special


class Whole:
    """Before the first file in a folder, removes what a killed run left there."""

    def __init__(self) -> None:
        self._swept: set[str] = set()

    def write(self, path: str, write: Callable[[str], None]) -> None:
        folder = os.path.dirname(os.path.realpath(path))
        if folder not in self._swept:
            self._swept.add(folder)
            temporaries.sweep(folder)
        write_whole(path, write)


def write_whole(path: str, write: Callable[[str], None]) -> None:
    """Write next to the path and rename: a reader sees the old file or the whole new one."""
    if is_special(path):
        return write(path)
    folder, name = os.path.split(os.path.realpath(path))
    try:
        descriptor, temporary = temporaries.make(folder, name)
    # The folder is missing, or it allows writing files but not creating them. The loop then gets
    # torch's own error, if any.
    except OSError:
        return write(path)
    try:
        write(temporary)
        os.chmod(temporary, _mode(path))
        os.replace(temporary, os.path.realpath(path))
    except BaseException:
        os.unlink(temporary)
        raise
    finally:
        os.close(descriptor)


def _mode(path: str) -> int:
    with contextlib.suppress(FileNotFoundError):
        return os.stat(path).st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
