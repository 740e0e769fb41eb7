"""What the ``for`` loops around a place in the user's code have counted to.

A ``for`` over a range hides its position in an iterator that nobody can set. So a replay has to get each of them to where it
was by itself; whether it did is seen in the variables that they assign.
"""

from __future__ import annotations

import dis
from functools import cache
from types import CodeType, FrameType
from typing import Any

from torchbus.plugin import local_variables

Counters = dict[str, Any]
Loop = tuple[str, int]  # the frame's place, and where in its code the loop asks for its next item
SCALARS = (int, str, float, bool)


def around(frames: list[FrameType]) -> Counters:
    """The variables of all loops whose body is being run, by place."""
    return _counted(frames, False, SCALARS)


def at_head(frames: list[FrameType]) -> Counters:
    """The numbers that were assigned last by loops that are asking for their next item."""
    return _counted(frames, True, (int,))


def _counted(frames: list[FrameType], standing: bool, kinds: tuple[type, ...]) -> Counters:
    found: Counters = {}
    for index, frame in enumerate(frames):
        names = _assigned(frame, standing)
        variables = local_variables.read(frame) if names else {}
        found |= {f"{place(frames, index)}:{name}": variables[name] for name in names if type(variables.get(name)) in kinds}
    return found


def place(frames: list[FrameType], index: int) -> str:
    """The frame by its function and its depth, which are the same in the next run."""
    return f"{index} {frames[index].f_code.co_name}"


def head_names(frame: FrameType) -> set[str]:
    """The variables that the loop which asks for its next item is about to assign."""
    return set(_assigned(frame, True))


def loops(frames: list[FrameType], standing: bool) -> set[Loop]:
    """The loops that ask for their next item (``standing``), or those whose body is being run."""
    return {(place(frames, index), head) for index, frame in enumerate(frames) for head, _ in _around(frame, standing)}


def _assigned(frame: FrameType, standing: bool) -> list[str]:
    return [name for _, names in _around(frame, standing) for name in names]


def _around(frame: FrameType, standing: bool) -> list[tuple[int, tuple[str, ...]]]:
    """Where each of these loops asks for its next item, and what it assigns."""
    at = frame.f_lasti
    return [(head, names) for head, body, end, names in _loops(frame.f_code) if head <= at < end and (at < body) is standing]


@cache
def _loops(code: CodeType) -> list[tuple[int, int, int, tuple[str, ...]]]:
    """Of each ``for``: where it asks for its next item, where its body begins and ends, and what it assigns."""
    instructions = list(dis.get_instructions(code))
    loops = []
    for index, instruction in enumerate(instructions):
        if instruction.opname == "FOR_ITER":
            following = instructions[index + 1 :]
            body = following[0].offset if following else instruction.offset + 2
            loops.append((instruction.offset, body, instruction.argval, tuple(_targets(following))))
    return loops


def _targets(instructions: list[dis.Instruction]) -> list[str]:
    names: list[str] = []
    for instruction in instructions:
        if instruction.opname.startswith("STORE_") and "ATTR" not in instruction.opname and "SUBSCR" not in instruction.opname:
            stored = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
            names += [str(name) for name in (stored[:1] if "LOAD" in instruction.opname else stored)]
            if "LOAD" in instruction.opname:
                break
        elif not instruction.opname.startswith(("UNPACK_", "CACHE", "EXTENDED_ARG", "NOP")):
            break
    return names
