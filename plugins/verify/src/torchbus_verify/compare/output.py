"""Compares what two runs have printed and written: words exactly, numbers within rounding; names,
completeness and tensors of files.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Iterable, Set
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from torchbus_strategy.checks import rounding
from torchbus_verify.compare.difference import distance
from torchbus_verify.record.writing import RankRecord
from torchbus_verify.runs.run import EndedRun

NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w])|\b(?:nan|inf)\b")
DIGIT = 1.01
"""The tolerance in units of the last printed digit, which rounding may change."""


@dataclass(frozen=True)
class LineDifference:
    """A line that differs: ``ours`` is the session's, ``theirs`` the plain run's."""

    number: int
    ours: str
    theirs: str


def lines_of(record: RankRecord) -> list[str]:
    return [event["text"] for event in record.of("line")]


def compare_printed(
    ours: list[str], theirs: list[str], volatile: Set[int] = frozenset(), tolerance: float = 0.0
) -> list[LineDifference]:
    """Return the lines that differ, except those that also differ between two plain runs."""
    found = [
        LineDifference(number, a, b)
        for number, (a, b) in enumerate(zip(ours, theirs, strict=False))
        if number not in volatile and not alike(a, b, tolerance)
    ]
    if len(ours) != len(theirs):
        more, number = (ours, len(theirs)) if len(ours) > len(theirs) else (theirs, len(ours))
        text = more[number]
        found.append(LineDifference(number, *((text, "") if more is ours else ("", text))))
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


def sums(ours: LineDifference, of_ranks: Iterable[list[str]]) -> bool:
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


TEXT_BYTES = 2**20
SAVED = (".pt", ".pth", ".tar", ".ckpt", ".bin", ".pkl")
Allowed = float


ONLY_OURS = "written by the session's run, not by the plain one"
ONLY_PLAIN = "written by the plain run, not by the session's"


@dataclass(frozen=True)
class File:
    """A problem with a file."""

    name: str
    text: str


def compare(
    ours: EndedRun, plain: EndedRun, again: EndedRun | None, allowed: Allowed
) -> list[File]:
    """Compare the files of two runs.

    ``again`` is a second plain run: if its files have other names, names depend on time or chance,
    and only complete reading is checked. ``allowed`` is the tolerance for a tensor.
    """
    mine, theirs = set(map(str, ours.written)), set(map(str, plain.written))
    chance = set() if again is None else theirs ^ set(map(str, again.written))
    torn = {name for name in mine if _is_torn(ours.work / name)}
    found = [File(name, "can't be read whole") for name in sorted(torn)]
    if chance:
        return found
    found += [File(name, ONLY_OURS) for name in sorted(mine - theirs)]
    found += [File(name, ONLY_PLAIN) for name in sorted(theirs - mine)]
    for name in sorted((mine & theirs) - torn):
        third = None if again is None else again.work / name
        text = _content(ours.work / name, plain.work / name, third, allowed)
        found += [File(name, text)] if text else []
    return found


def by_chance(plain: EndedRun, again: EndedRun) -> list[str]:
    """Return the names of files that only the first of two plain runs has written."""
    return sorted(set(map(str, plain.written)) - set(map(str, again.written)))


def _is_torn(path: Path) -> bool:
    if not zipfile.is_zipfile(path):
        with open(path, "rb") as file:
            return file.read(4) == b"PK\x03\x04"  # the beginning of an archive without its end
    with zipfile.ZipFile(path) as archive:
        return archive.testzip() is not None


def _content(ours: Path, plain: Path, again: Path | None, allowed: Allowed) -> str:
    if ours.read_bytes() == plain.read_bytes():
        return ""
    if zipfile.is_zipfile(plain) or plain.suffix in SAVED:
        return _tensors(ours, plain, allowed)
    return _text(ours, plain, again, allowed)


def _tensors(ours: Path, plain: Path, allowed: Allowed) -> str:
    try:
        mine, theirs = (
            _flat(torch.load(path, map_location="cpu", weights_only=True)) for path in (ours, plain)
        )
    except Exception:  # it contains code of the script, which is not run here
        return ""
    for name in dict.fromkeys([*theirs, *mine]):
        if name not in mine or name not in theirs:
            return f"{name} is only in {'the plain' if name in theirs else 'the session'} run's"
        gap = _gap(mine[name], theirs[name])
        if gap > allowed:
            return f"{name} differs by {gap:.1g}"
    return ""


def _gap(mine: object, theirs: object) -> float:
    if isinstance(mine, Tensor) and isinstance(theirs, Tensor):
        if theirs.dtype == torch.uint8 and theirs.shape == torch.get_rng_state().shape:
            return 0.0  # a generator's state: the session has separate streams
        return distance(mine, theirs) if mine.shape == theirs.shape else math.inf
    if isinstance(mine, float) and isinstance(theirs, float):
        return abs(mine - theirs) / max(abs(mine), abs(theirs), rounding.unit())
    return (
        0.0
        if type(mine) is type(theirs) and (isinstance(mine, str) or mine == theirs)
        else math.inf
    )


def _flat(value: object, name: str = "") -> dict[str, object]:
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list | tuple)
        else None
    )
    if items is None:
        return {name or "its content": value}
    return {
        key: one
        for part, inner in items
        for key, one in _flat(inner, f"{name}.{part}" if name else str(part)).items()
    }


def _text(ours: Path, plain: Path, again: Path | None, allowed: Allowed) -> str:
    texts = [_lines(path) for path in (ours, plain)]
    if texts[0] is None or texts[1] is None:
        return ""
    repeated = _lines(again) if again is not None and again.exists() else None
    chance = set() if repeated is None else volatile(texts[1], repeated)
    found = compare_printed(texts[0], texts[1], chance, allowed)
    return (
        f"line {found[0].number + 1} is {found[0].ours!r}, not {found[0].theirs!r}" if found else ""
    )


def _lines(path: Path) -> list[str] | None:
    if path.stat().st_size > TEXT_BYTES:
        return None
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        return None
