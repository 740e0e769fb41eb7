"""Determines from the source how many iterations the enclosing loop makes."""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import NamedTuple

from torchbus.compat.python import read

from torchbus_strategy.user_code import parsed

ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
RANGES = ("range", "trange", "epochs")


class LoopAround(NamedTuple):
    """The innermost loop over numbers around the current lines.

    ``counts`` has the possible numbers of its iterations, and is empty if the source does not show
    them. ``is_over_passes`` is True if this loop contains another loop, such as one over a loader.
    """

    counts: list[int]
    is_over_passes: bool


def loop_around(frames: list[FrameType]) -> LoopAround:
    """Find the loop in the sources of these frames, which are ordered innermost first."""
    is_inside = False
    for frame in frames:
        for node in reversed(loops_in(frame.f_code.co_filename)):
            if node.lineno <= frame.f_lineno <= (node.end_lineno or node.lineno):
                counts = list(_counts(node.iter, {**frame.f_globals, **read(frame)}))
                if counts:
                    return LoopAround(counts, is_inside)
                is_inside = True
    return LoopAround([], is_inside)


@functools.lru_cache(maxsize=16)
def loops_in(file: str) -> list[ast.For]:
    """Return the ``for`` loops in a file, in the order of their lines; none if it can't be read."""
    loops = [node for node in ast.walk(parsed(file)) if isinstance(node, ast.For)]
    return sorted(loops, key=lambda node: node.lineno)


def _counts(over: ast.expr, variables: Mapping[str, object]) -> Iterator[int]:
    """Yield the counts of ``range(10)``, ``range(1, epochs + 1)``, ``tqdm(s.epochs(10))``."""
    for node in ast.walk(over):
        function = getattr(node, "func", None)
        if getattr(function, "attr", getattr(function, "id", "")) in RANGES:
            ends = [_value(one, variables) for one in node.args[:2]]  # type: ignore[attr-defined]
            if ends and all(isinstance(end, int) for end in ends):
                yield ends[-1]  # type: ignore[misc]
                yield ends[-1] - (ends[0] if len(ends) > 1 else 0)  # type: ignore[operator, misc]


def _value(node: ast.expr, variables: Mapping[str, object]) -> object:
    """Return the value of ``10``, ``args.epochs``, ``config["epochs"]`` or ``epochs + 1``."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return variables.get(node.id)
    if isinstance(node, ast.Attribute):
        return getattr(_value(node.value, variables), "__dict__", {}).get(node.attr)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        held = _value(node.value, variables)
        return held.get(node.slice.value) if isinstance(held, dict) else None
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        left, right = _value(node.left, variables), _value(node.right, variables)
        if isinstance(left, int) and isinstance(right, int):
            return ARITHMETIC[type(node.op)](left, right)
    return None
