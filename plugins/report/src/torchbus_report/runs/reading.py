"""Files of a run into memory. A process that was killed leaves a line without end: everything before it counts."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from torchbus_report.runs.run import Lines, Point, Run

NOT_METRICS = ("step", "epoch", "time_s")
NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def read(folder: Path) -> Run:
    """Everything in a run's folder that can be read; nothing of it is required."""
    config, error = _config(folder / "config.json")
    return Run(folder, config, _by_rank(folder, "metrics"), _by_rank(folder, "system"), error)


def _config(path: Path) -> tuple[dict[str, Any], str]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        return {}, f"config.json can't be read: {error.strerror}"
    except ValueError as error:
        return {}, f"config.json is damaged: {error}"
    return (found, "") if isinstance(found, dict) else ({}, "config.json is damaged: it holds no object")


def _by_rank(folder: Path, kind: str) -> dict[int, Lines]:
    found = {path: re.fullmatch(rf"{kind}-rank(\d+)\.jsonl", path.name) for path in folder.glob(f"{kind}-rank*.jsonl")}
    return {rank: parse(path.read_bytes()) for rank, path in sorted((int(match[1]), path) for path, match in found.items() if match)}


def parse(content: bytes) -> Lines:
    """The lines of one file."""
    *whole, rest = content.split(b"\n")
    points = [point(line) for line in whole if line.strip()]
    last = point(rest) if rest.strip() else None
    good = [one for one in (*points, last) if one is not None]
    return Lines(good, damaged=points.count(None), cut=bool(rest.strip()) and last is None)


def point(line: bytes) -> Point | None:
    """One line, or None if it is damaged."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not _is_number(record.get("time_s")):
        return None
    values = {name: NOT_FINITE.get(value, value) if isinstance(value, str) else value for name, value in record.items() if name not in NOT_METRICS}
    numbers = {name: float(value) for name, value in values.items() if _is_number(value)}
    return Point(_whole(record.get("step")), _whole(record.get("epoch")), float(record["time_s"]), numbers)


def _is_number(value: object) -> bool:
    return (isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e308) or isinstance(value, float)


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and _is_number(value) and math.isfinite(value) else None
