"""Classifies paths: files of the script, and what several ranks may share unchanged."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from torchbus._compat.cpython import PATHLIBS

if TYPE_CHECKING:
    from torchbus._session.context import Context


def replace_everywhere(
    session: Context, owner: ModuleType, name: str, make: Callable[[Any], object]
) -> None:
    """Replace a function of ``os`` or ``io``, also for pathlib."""
    session.replace(owner, name, make)
    if PATHLIBS is not None and name in vars(PATHLIBS):
        session.replace(PATHLIBS, name, make)


def absolute(path: Any) -> str:
    """Return the absolute path of anything that Python's functions take as a path.

    An empty path, which leads nowhere, stays empty.
    """
    name = os.fsdecode(path)
    return os.path.abspath(name) if name else ""


def is_private(path: str) -> bool:
    """Return whether a file does not belong to the script.

    Such files are devices, those in hidden folders at home, and those in the system's temporary
    folder, unless the script works in it.
    """
    temporary, home = tempfile.gettempdir() + os.sep, os.path.join(os.path.expanduser("~"), ".")
    if path.startswith(("/dev/", "/proc/", "/sys/", home)):
        return True
    return path.startswith(temporary) and not path.startswith(os.getcwd() + os.sep)


def is_special(path: str) -> bool:
    """Return whether the path is something other than a regular file: a folder, pipe or device.

    It makes one system call, because another rank may move the file away meanwhile.
    """
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False
