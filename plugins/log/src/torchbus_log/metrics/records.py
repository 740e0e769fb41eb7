"""The values that were logged since the last log point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torchbus_log.metrics.totals import combine
from torchbus_log.metrics.values import Value, to_host


class Record(NamedTuple):
    """One name's contribution to a log point.

    ``parts`` are numbers, or tensors that are still on their device. ``reduce`` combines them to
    one number, which is multiplied by ``scale`` and stands for ``weight`` samples. ``sync``: reduce
    it over ranks. ``may_lack``: other ranks may have no value of this name.
    """

    name: str
    step: int
    epoch: int | None
    parts: Sequence[Value]
    scale: float
    weight: float
    reduce: str
    sync: bool
    prog_bar: bool
    may_lack: bool = False


class Line(NamedTuple):
    """The numbers of one step, as loggers get them."""

    step: int
    epoch: int | None
    metrics: dict[str, float]
    prog_bar: set[str]


def numbers_of(records: Sequence[Record]) -> list[tuple[float, float]]:
    """Return the total of each record, and the samples that it stands for.

    All tensors are copied to the host at once.
    """
    host = iter(to_host(part for record in records for part in record.parts))
    totals = [
        combine([next(host) for _ in record.parts], record.reduce) * record.scale
        for record in records
    ]
    return [(total, record.weight) for total, record in zip(totals, records, strict=True)]


def merged(reduce: str, numbers: Iterable[tuple[float, float]]) -> float:
    """Combine numbers of several ranks, without those that stand for no samples."""
    there = [(total, weight) for total, weight in numbers if weight]
    if not there:
        return 0.0 if reduce == "sum" else float("nan")
    total = combine([total for total, _ in there], reduce)
    return total / sum(weight for _, weight in there) if reduce == "mean" else total


def lines(records: Iterable[Record], values: Iterable[float]) -> list[Line]:
    """Group numbers by step, in order. A name that comes twice at one step begins a new line."""
    found: dict[int, list[Line]] = {}
    seen: Counter[tuple[int, str]] = Counter()
    for record, value in zip(records, values, strict=True):
        ones = found.setdefault(record.step, [])
        place = seen[record.step, record.name]
        seen[record.step, record.name] += 1
        if place == len(ones):
            ones.append(Line(record.step, record.epoch, {}, set()))
        line = ones[place]
        line.metrics[record.name] = value
        if record.prog_bar:
            line.prog_bar.add(record.name)
    return [line for step in sorted(found) for line in found[step]]
