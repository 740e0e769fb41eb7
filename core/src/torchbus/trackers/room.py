"""Whether a disk has room left."""

from __future__ import annotations

import os
from pathlib import Path

ENOUGH_BYTES = 64 << 10


class NoRoom(OSError):
    """A call was not made, since there was none."""


def has_room(folder: str | os.PathLike[str]) -> bool:
    """Whether a few records still fit where this folder is, or will be. Where that can't be asked, there is."""
    if not hasattr(os, "statvfs"):
        return True
    path = Path(folder).absolute()
    try:
        found = os.statvfs(next(one for one in (path, *path.parents) if one.exists()))
    except (OSError, StopIteration):
        return True
    return found.f_bavail * found.f_frsize >= ENOUGH_BYTES or found.f_blocks == 0
