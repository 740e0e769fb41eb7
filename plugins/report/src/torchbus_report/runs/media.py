"""Pictures, histograms and tables of a run: lines of media.jsonl, and PNG files that they name."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchbus_report.runs import files, sheets
from torchbus_report.runs.files import Unreadable, showable
from torchbus_report.runs.sheets import Sheet

PLACE = re.compile(r"media/[0-9]{1,9}\.png")
SIGNATURE = b"\x89PNG\r\n\x1a\n"
MOST_BINS, LARGEST_STEP, LARGEST_VALUE = 512, 2**53, 1e300


@dataclass(frozen=True)
class Picture:
    name: str
    step: int
    path: Path

    def content(self, folder: Path) -> bytes | None:
        """Return the file, or None if it can't be read, or is not a PNG file."""
        try:
            found = files.whole(self.path, folder)
        except Unreadable:
            return None
        return found if found.startswith(SIGNATURE) else None


@dataclass(frozen=True)
class Distribution:
    """Counts of equal bins between ``low`` and ``high``."""

    name: str
    step: int
    counts: list[float]
    low: float
    high: float


@dataclass(frozen=True)
class Media:
    """What rank 0 has logged beside numbers. ``problem`` says why the rest is not read."""

    pictures: list[Picture] = field(default_factory=list)
    histograms: list[Distribution] = field(default_factory=list)
    sheets: list[Sheet] = field(default_factory=list)
    problem: str = ""


def read(folder: Path) -> Media:
    """Read all that can be read. Damaged lines are left out."""
    path, found = folder / "media.jsonl", Media()
    if not path.exists():
        return found
    try:
        with files.opened(path, folder) as file:
            for line in files.lines(file):
                one = _parsed(line, folder)
                if isinstance(one, Picture):
                    found.pictures.append(one)
                elif isinstance(one, Sheet):
                    found.sheets.append(one)
                elif one is not None:
                    found.histograms.append(one)
    except Unreadable as error:
        return Media(found.pictures, found.histograms, found.sheets, f"{path.name} {error}")
    return found


def _parsed(line: bytes, folder: Path) -> Picture | Distribution | Sheet | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not _is_number(record.get("step"), LARGEST_STEP):
        return None
    return _picture(record, folder) or _histogram(record) or sheets.parsed(record)


def _picture(record: dict[str, Any], folder: Path) -> Picture | None:
    name, file = record.get("image"), record.get("file")
    if not (isinstance(name, str) and isinstance(file, str) and PLACE.fullmatch(file)):
        return None
    return Picture(showable(name), int(record["step"]), folder / file)


def _histogram(record: dict[str, Any]) -> Distribution | None:
    name: Any = record.get("histogram")
    counts: Any = record.get("counts")
    ends: Any = record.get("range")
    if not (isinstance(name, str) and _are_counts(counts) and _are_ends(ends)):
        return None
    low, high = ends
    return Distribution(showable(name), int(record["step"]), counts, float(low), float(high))


def _is_number(value: object, limit: float) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= limit
    )  # NaN is not less than anything


def _are_counts(value: Any) -> bool:
    return (
        isinstance(value, list)
        and 0 < len(value) <= MOST_BINS
        and all(_is_number(one, LARGEST_VALUE) and one >= 0 for one in value)
    )


def _are_ends(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(_is_number(one, LARGEST_VALUE) for one in value)
        and value[0] < value[1]
        and math.isfinite(value[1] - value[0])
    )
