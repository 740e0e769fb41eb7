"""Compares printed output: words exactly, numbers within rounding."""

from __future__ import annotations

import re
from collections.abc import Iterable, Set
from dataclasses import dataclass

from torchbus_verify.record.writing import Record

NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w])|\b(?:nan|inf)\b")
DIGIT = 1.01
"""Of the last digit that is printed: rounding may tip it."""


@dataclass(frozen=True)
class Line:
    """A line that differs: the session's and the plain run's."""

    number: int
    ours: str
    theirs: str


def lines_of(record: Record) -> list[str]:
    return [event["text"] for event in record.of("line")]


def compare(
    ours: list[str], theirs: list[str], volatile: Set[int] = frozenset(), tolerance: float = 0.0
) -> list[Line]:
    """Return the lines that differ, except those that also differ between two plain runs."""
    found = [
        Line(number, a, b)
        for number, (a, b) in enumerate(zip(ours, theirs, strict=False))
        if number not in volatile and not alike(a, b, tolerance)
    ]
    if len(ours) != len(theirs):
        more, number = (ours, len(theirs)) if len(ours) > len(theirs) else (theirs, len(ours))
        text = more[number]
        found.append(Line(number, *((text, "") if more is ours else ("", text))))
    return found


def alike(a: str, b: str, tolerance: float = 0.0) -> bool:
    """Whether the words are equal, and the numbers within rounding."""
    if a == b:
        return True
    if NUMBER.split(a) != NUMBER.split(b):
        return False
    return all(
        _near(x, y, tolerance) for x, y in zip(NUMBER.findall(a), NUMBER.findall(b), strict=True)
    )


def numbers(text: str) -> list[float]:
    return [float(one) for one in NUMBER.findall(text)]


def volatile(first: list[str], again: list[str]) -> set[int]:
    """Return the lines that two plain runs print differently: times, paths, addresses."""
    return {number for number, (a, b) in enumerate(zip(first, again, strict=False)) if a != b}


def sums(ours: Line, of_ranks: Iterable[list[str]]) -> bool:
    """Whether the ranks' values of each differing number add up to the plain run's."""
    lines = [lines[ours.number] for lines in of_ranks if ours.number < len(lines)]
    wanted, found = numbers(ours.theirs), [numbers(one) for one in lines]
    if not found or any(len(one) != len(wanted) for one in found):
        return False
    for place, value in enumerate(wanted):
        mine = [one[place] for one in found]
        if mine[0] != value and abs(sum(mine) - value) > 1e-6 * max(abs(value), 1e-9) + _last_digit(
            ours.theirs, place
        ) * len(mine):
            return False
    return True


def _near(x: str, y: str, tolerance: float) -> bool:
    a, b = float(x), float(y)
    if a == b or (a != a and b != b):
        return True
    tipped = max(_digit(x), _digit(y))
    return abs(a - b) <= DIGIT * tipped + tolerance * max(abs(a), abs(b))


def _digit(text: str) -> float:
    """Return the unit of the last printed digit of a number; 0 for an integer."""
    if "." not in text and "e" not in text.lower():
        return 0.0
    mantissa, _, exponent = text.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    return (
        float(10.0 ** (int(exponent or 0) - decimals))
        if exponent.lstrip("+-").isdigit() or not exponent
        else 0.0
    )


def _last_digit(text: str, place: int) -> float:
    return _digit(NUMBER.findall(text)[place])
