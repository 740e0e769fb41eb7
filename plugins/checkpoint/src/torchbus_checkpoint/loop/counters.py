"""The numbers to which the ``for`` loops around a place in the user's code have counted.

A ``for`` over a range hides its position in an iterator that nobody can set. So a replay has to
bring each loop back to its position. The variables that the loops assign show whether it did.
"""

from __future__ import annotations

from types import FrameType

from torchbus.compat import python

from torchbus_checkpoint._compat import loops_in

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
    """Return the variables that a loop is about to assign: it asks for its next item."""
    return set(_assigned(frame, True))


def loops(frames: list[FrameType], standing: bool) -> set[Loop]:
    """Return the loops that ask for their next item (``standing``), or those in their body."""
    return {
        (place(frames, index), head)
        for index, frame in enumerate(frames)
        for head, _ in _around(frame, standing)
    }


def _assigned(frame: FrameType, standing: bool) -> list[str]:
    return [name for _, names in _around(frame, standing) for name in names]


def _around(frame: FrameType, standing: bool) -> list[tuple[int, tuple[str, ...]]]:
    """Return where each of these loops asks for its next item, and what it assigns."""
    at = frame.f_lasti
    return [
        (head, names)
        for head, body, end, names in loops_in(frame.f_code)
        if head <= at < end and (at < body) is standing
    ]
