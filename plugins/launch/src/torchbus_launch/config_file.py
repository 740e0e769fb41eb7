"""Reads a configuration file: a regular file of limited size, or a pipe that the shell opened."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

LARGEST, IRREGULAR = 16 << 20, "it is not a regular file"


def read_text(path: Path) -> str:
    """Return the text of the file.

    Raises OSError, also for a file that would block the command or fill its memory, and ValueError
    if the text is not UTF-8.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(descriptor, "rb") as file:
        is_named = os.path.exists(os.path.realpath(path))  # not so for `--config <(command)`
        if is_named and not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, IRREGULAR)
        os.set_blocking(descriptor, True)
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise OSError(errno.EFBIG, f"it has more than {LARGEST >> 20} MB")
    return data.decode()
