"""What a path is: the script's own file, or something that several ranks may share as it is."""

from __future__ import annotations

import os
import stat
import tempfile
from typing import Any


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
