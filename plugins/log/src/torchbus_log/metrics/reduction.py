"""The numbers of a log point: copied to the host, and reduced over ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchbus_log.metrics.exchange import Exchange, Key
from torchbus_log.metrics.records import Record, merged, numbers_of
from torchbus_log.metrics.values import Metric, kept


def own_values(ready: Sequence[Record]) -> list[float]:
    """Return this rank's value of each record."""
    return [
        merged(record.reduce, [pair]) for record, pair in zip(ready, numbers_of(ready), strict=True)
    ]


def over_ranks(
    exchange: Exchange,
    steps: int,
    ready: Sequence[Record],
    metrics: Sequence[tuple[str, Metric, int]],
) -> list[float]:
    """Return the value of each record, reduced over ranks if it is to be. All ranks call it.

    The exchange also checks that all ranks have the same metric objects.
    """
    mine = numbers_of(ready)
    shared = [index for index, record in enumerate(ready) if record.sync]
    keys = [
        Key(ready[index].name, ready[index].reduce, ready[index].step, ready[index].may_lack)
        for index in shared
    ]
    keys += [Key(name, "metric", step) for name, _, step in metrics]
    reduced = exchange.reduced(steps, keys, [mine[index] for index in shared])
    values = [merged(record.reduce, [pair]) for record, pair in zip(ready, mine, strict=True)]
    for index, value in zip(shared, reduced, strict=True):
        values[index] = value
    return values


def computed(name: str, metric: Metric, step: int, epoch: int | None) -> list[Record]:
    """Return the values of a metric object, which reduces itself over ranks."""
    value = metric.compute()
    named = value if isinstance(value, Mapping) else {name: value}
    return [
        Record(one, step, epoch, (kept(one, number),), 1.0, 1.0, "sum", False, False)
        for one, number in named.items()
    ]
