"""Checks whether a disk has room left."""

from __future__ import annotations

import os
from pathlib import Path

ENOUGH_BYTES = 64 << 10


class NoRoom(OSError):
    """Raised instead of a call, because the disk had no room left."""


def has_room(folder: str | os.PathLike[str]) -> bool:
    """Return whether a few records still fit on the disk of this folder, which need not exist yet.

    True if the system can't tell.
    """
    if not hasattr(os, "statvfs"):
        return True
    path = Path(folder).absolute()
    try:
        found = os.statvfs(next(one for one in (path, *path.parents) if one.exists()))
    except (OSError, StopIteration):
        return True
    return found.f_bavail * found.f_frsize >= ENOUGH_BYTES or found.f_blocks == 0
