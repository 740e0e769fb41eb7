"""Frames of user code on the call stack, and the objects that their variables name."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import FrameType

from torch.nn import Module
from torchbus.compat import python
from torchbus.runtime.user_code import LIBRARIES

from torchbus_checkpoint._compat import loops_in

OURS = ("torchbus", "pluggy", "torch.")
DEPTH, MAX_ITEMS = 3, 64


def user_frames(outermost: FrameType | None) -> list[FrameType]:
    """Return the frames of the user's code, outermost first, up to the frame of the session."""
    frames: list[FrameType] = []
    frame: FrameType | None = python.current_frame(1)
    while frame is not None:
        if is_users(frame.f_globals.get("__name__", ""), frame.f_code.co_filename):
            frames.append(frame)
        if frame is outermost:
            break
        frame = frame.f_back
    return frames[::-1]


def is_users(module: str, path: str | None) -> bool:
    """Whether code is the user's: not torchbus, torch, standard library or an installed package."""
    if module.startswith(OURS) or path is None:
        return False
    return (
        "site-packages" not in path
        and "dist-packages" not in path
        and not path.startswith(LIBRARIES)
    )


def is_users_class(cls: type) -> bool:
    module = sys.modules.get(cls.__module__)
    return cls.__module__ == "__main__" or (
        module is not None and is_users(cls.__module__, getattr(module, "__file__", None))
    )


def named(frames: list[FrameType]) -> tuple[dict[int, str], list[object]]:
    """Return the names of objects by id (``net``, ``self.net``, ``nets[0]``), and the objects.

    If an object has several names, the one in the innermost frame counts.
    """
    names: dict[int, str] = {}
    things: dict[int, object] = {}
    for frame in frames:
        for name, value in variables(frame).items():
            for path, thing in _with_parts(name, value, DEPTH):
                names[id(thing)] = path
                things[id(thing)] = thing
    return names, list(things.values())


def variables(frame: FrameType) -> dict[str, object]:
    """Return the globals that a frame sees, and its local variables."""
    mine = {name: value for name, value in frame.f_globals.items() if not name.startswith("__")}
    return {**mine, **python.read(frame)}


def _with_parts(name: str, value: object, depth: int) -> Iterator[tuple[str, object]]:
    """Yield the parts of a list, a dict or an instance of a user's class, and then the object."""
    parts: Iterable[tuple[str, object]] = ()
    if (type(value) is list or type(value) is tuple) and len(value) <= MAX_ITEMS:
        parts = ((f"{name}[{index}]", item) for index, item in enumerate(value))
    elif type(value) is dict and len(value) <= MAX_ITEMS:
        parts = ((f"{name}[{key!r}]", item) for key, item in value.items())
    elif not isinstance(value, Module) and is_users_class(type(value)):
        parts = (
            (f"{name}.{attribute}", item)
            for attribute, item in list(getattr(value, "__dict__", {}).items())
        )
    for path, part in parts if depth else ():
        yield from _with_parts(path, part, depth - 1)
    yield name, value


Counter = int | str | float | bool
Counters = dict[str, Counter]
Loop = tuple[str, int]  # the frame's place, and the offset at which the loop asks for its next item
SCALARS = (int, str, float, bool)


def around(frames: list[FrameType]) -> Counters:
    """Return the variables of all loops whose body is running, by place."""
    return _counted(frames, False, SCALARS)


def at_head(frames: list[FrameType]) -> Counters:
    """Return the last numbers of the loops that are asking for their next item."""
    return _counted(frames, True, (int,))


def _counted(frames: list[FrameType], standing: bool, kinds: tuple[type, ...]) -> Counters:
    found: Counters = {}
    for index, frame in enumerate(frames):
        names = _assigned(frame, standing)
        variables = python.read(frame) if names else {}
        found |= {
            f"{place(frames, index)}:{name}": variables[name]
            for name in names
            if type(variables.get(name)) in kinds
        }
    return found


def place(frames: list[FrameType], index: int) -> str:
    """Name a frame by its depth and its function, which are the same in the next run."""
    return f"{index} {frames[index].f_code.co_name}"


def head_names(frame: FrameType) -> set[str]:
    """Return the variables of loops that are asking for their next item, which they will assign."""
    return set(_assigned(frame, True))


def loops(frames: list[FrameType], standing: bool) -> set[Loop]:
    """Return the loops that ask for their next item (``standing``), or whose body is running."""
    return {
        (place(frames, index), head)
        for index, frame in enumerate(frames)
        for head, _ in _around(frame, standing)
    }


def _assigned(frame: FrameType, standing: bool) -> list[str]:
    return [name for _, names in _around(frame, standing) for name in names]


def _around(frame: FrameType, standing: bool) -> list[tuple[int, tuple[str, ...]]]:
    """Return the offset at which each such loop asks for its next item, and what it assigns."""
    at = frame.f_lasti
    return [
        (head, names)
        for head, body, end, names in loops_in(frame.f_code)
        if head <= at < end and (at < body) is standing
    ]
