"""CPython's own: frames, references, and what pathlib, atexit and argparse keep to themselves.

All were seen in Python 3.10 to 3.13.
"""

from __future__ import annotations

import argparse
import atexit
import ctypes
import pathlib
import sys
from collections.abc import Callable
from types import FrameType

current_frame: Callable[[int], FrameType] = sys._getframe
"""``current_frame(1)`` is the caller's. Without it: AttributeError at ``import torchbus``."""

frames_of_threads: Callable[[], dict[int, FrameType]] = sys._current_frames
"""The innermost of each thread. Without it: AttributeError at ``import torchbus``."""

PATHLIBS = getattr(pathlib, "_NormalAccessor", None)
"""Seen in Python 3.10 only: a class with the functions that pathlib calls, as they were when it was
imported. Without it: pathlib asks ``os`` and ``io``.
"""

run_exit_functions: Callable[[], None] = atexit._run_exitfuncs
"""Without it: AttributeError in ``torchbus.testing``."""


def arguments_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return what a parser takes. Without it: AttributeError in ``torchbus completion``."""
    return parser._actions


def keep(thing: object) -> None:
    """Add a reference that not even the end of the interpreter takes away."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
