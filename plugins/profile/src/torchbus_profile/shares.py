"""What the time of some steps went to: computing, waiting for ranks, for data, or for the host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple


class Span(NamedTuple):
    """A stretch of time, in microseconds of the profiler's clock."""

    start_us: float
    end_us: float


class Shares(NamedTuple):
    """Parts of the time, from 0 to 1, which add up to 1.

    ``compute``: operations ran. ``ranks``: only a collective ran. ``data``: the loop waited for its
    loader. ``host``: none of these, so Python ran, or the device waited for it.
    """

    compute: float
    ranks: float
    data: float
    host: float


def shares(window: Span, spans: Mapping[str, Iterable[Span]]) -> Shares:
    """Share the time of a window out. If several kinds of spans overlap, the first one counts.

    ``spans``: of kinds "compute", "ranks" and "data", the most important first.
    """
    took = dict.fromkeys(Shares._fields, 0.0)
    for length_us, kinds in _stretches(window, spans):
        took[next((kind for kind in spans if kind in kinds), "host")] += length_us
    whole = sum(took.values())
    return Shares(**{kind: part / whole if whole else 0.0 for kind, part in took.items()})


def _stretches(
    window: Span, spans: Mapping[str, Iterable[Span]]
) -> Iterator[tuple[float, set[str]]]:
    """Yield the length of each stretch in which the same kinds run, and these kinds."""
    changes: list[tuple[float, str, int]] = [(edge, "", 0) for edge in window]
    for kind, found in spans.items():
        for start, end in found:
            start, end = max(start, window.start_us), min(end, window.end_us)
            if start < end:
                changes += [(start, kind, 1), (end, kind, -1)]
    running = dict.fromkeys(spans, 0)
    for (time_us, kind, change), (next_us, _, _) in pairwise(sorted(changes)):
        if kind:
            running[kind] += change
        yield next_us - time_us, {kind for kind, count in running.items() if count}
