"""What a path is: the script's own file, or something that several ranks may share as it is."""

from __future__ import annotations

import os
import pathlib
import stat
import tempfile
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchbus._session.context import Context

PATHLIBS = getattr(pathlib, "_NormalAccessor", None)
"""Python 3.10: a class with the functions that pathlib calls, as they were when it was imported."""


def replace_everywhere(session: Context, owner: ModuleType, name: str, make: Callable[[Any], Any]) -> None:
    """A function of ``os`` or ``io``, for pathlib as well."""
    session.replace(owner, name, make)
    if PATHLIBS is not None and name in vars(PATHLIBS):
        session.replace(PATHLIBS, name, make)


def absolute(path: Any) -> str:
    """Of a path as Python's own functions take it; an empty one, which leads nowhere, stays empty."""
    name = os.fsdecode(path)
    return os.path.abspath(name) if name else ""


def is_private(path: str) -> bool:
    """Whether a file does not belong to the script: devices, hidden folders at home, and the system's temporary folder,
    unless the script works in it."""
    temporary, home = tempfile.gettempdir() + os.sep, os.path.join(os.path.expanduser("~"), ".")
    if path.startswith(("/dev/", "/proc/", "/sys/", home)):
        return True
    return path.startswith(temporary) and not path.startswith(os.getcwd() + os.sep)


def is_special(path: str) -> bool:
    """Whether there is something that is no file: a folder, a pipe, a device. Asked once: another rank may just move it away."""
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False
