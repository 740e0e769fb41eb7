"""Private names of CPython: frames, their variables, pathlib and log handlers.

All were seen in Python 3.10 to 3.13.
"""

from __future__ import annotations

import argparse
import ctypes
import inspect
import pathlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

current_frame: Callable[[int], FrameType] = sys._getframe
"""``current_frame(1)`` is the caller's. Without it: AttributeError at ``import torchbus``."""
PATHLIBS = getattr(pathlib, "_NormalAccessor", None)
"""Seen in Python 3.10 only: a class with the functions that pathlib calls, as they were when it was
imported. Without it: pathlib calls those of ``os`` and ``io``.
"""
OPENED_BY = "_builtin_open"
"""The ``open`` that a log handler calls. Without it: a handler of before writes on each rank."""


def arguments_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return a parser's arguments. Without it: AttributeError in ``torchbus completion``."""
    return parser._actions


WORD = ctypes.sizeof(ctypes.c_void_p)
IN_FRAME = {(3, 10): (None, 6, 7), (3, 11): (3, 1, 3), (3, 12): (3, 3, 5)}
"""Offsets in words: in the frame object, of the pointer to the interpreter's frame (None in 3.10,
where they are one object), and in that frame, of the globals and of the snapshot.
"""
PLAIN_BUILD = sys.implementation.name == "cpython" and object.__basicsize__ == 2 * WORD
PLACE = IN_FRAME.get(sys.version_info[:2]) if PLAIN_BUILD else None


def read(frame: FrameType) -> dict[str, Any]:
    """Return a new dict of a frame's variables: for code of a module or class, of its names."""
    with _snapshot(frame) as variables:
        return dict(variables)


def assign(frame: FrameType, values: dict[str, object]) -> None:
    """Set variables of a frame. A function can't get new ones, but the code of a module can."""
    with _snapshot(frame) as variables:
        variables.update(values)
        if is_function(frame) and sys.version_info < (3, 13):
            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


def is_function(frame: FrameType) -> bool:
    """Whether the frame is a function's, whose variables are not names in a dict as a module's."""
    return bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)


@contextmanager
def _snapshot(frame: FrameType) -> Iterator[dict[str, object]]:
    address = _address(frame) if is_function(frame) else None
    if address is None:
        yield frame.f_locals
        return
    found: Any = ctypes.py_object.from_address(address) if _pointer(address) else None
    earlier = {} if found is None else dict(found.value)
    variables = frame.f_locals
    try:
        yield variables
    finally:
        variables.clear()
        variables.update(earlier)


def _address(frame: FrameType) -> int | None:
    """Return where the frame's reference to its snapshot is, or None if there is no such place."""
    if PLACE is None:
        return None
    inner, to_globals, to_snapshot = PLACE
    start = id(frame) if inner is None else _pointer(id(frame) + inner * WORD)
    return (
        start + to_snapshot * WORD
        if _pointer(start + to_globals * WORD) == id(frame.f_globals)
        else None
    )


def _pointer(address: int) -> int:
    return ctypes.c_void_p.from_address(address).value or 0
