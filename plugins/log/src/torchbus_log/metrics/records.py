"""What was logged since the last log point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torchbus_log.metrics.totals import combine
from torchbus_log.metrics.values import Value, to_host


class Record(NamedTuple):
    """One name's contribution to a log point.

    ``parts`` are numbers, or tensors still on their device, which ``reduce`` makes one of; times ``scale`` it is what all ranks add up.
    They stand for ``weight`` samples. ``sync``: reduce it over ranks. ``may_lack``: other ranks may have nothing of this name.
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
    """What each record tells other ranks: its total, and the samples that it stands for. Everything is copied at once."""
    host = iter(to_host(part for record in records for part in record.parts))
    totals = [combine([next(host) for _ in record.parts], record.reduce) * record.scale for record in records]
    return [(total, record.weight) for total, record in zip(totals, records, strict=True)]


def merged(reduce: str, numbers: Iterable[tuple[float, float]]) -> float:
    """One number of those of all ranks, or of one: those that stand for no samples are left out."""
    there = [(total, weight) for total, weight in numbers if weight]
    if not there:
        return 0.0 if reduce == "sum" else float("nan")
    total = combine([total for total, _ in there], reduce)
    return total / sum(weight for _, weight in there) if reduce == "mean" else total


def lines(records: Iterable[Record], values: Iterable[float]) -> list[Line]:
    """Numbers by step, in order; a name that comes twice at one step begins a new line."""
    told: dict[int, list[Line]] = {}
    seen: Counter[tuple[int, str]] = Counter()
    for record, value in zip(records, values, strict=True):
        ones = told.setdefault(record.step, [])
        place = seen[record.step, record.name]
        seen[record.step, record.name] += 1
        if place == len(ones):
            ones.append(Line(record.step, record.epoch, {}, set()))
        line = ones[place]
        line.metrics[record.name] = value
        if record.prog_bar:
            line.prog_bar.add(record.name)
    return [line for step in sorted(told) for line in told[step]]
