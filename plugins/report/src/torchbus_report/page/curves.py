"""The curves of a page: one for each run in training, and one for each rank in the system."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torchbus_report.page.series import Series, series
from torchbus_report.runs.run import Lines, Run


def metric_names(runs: list[Run], system: bool) -> list[str]:
    """Return all names in order of appearance, without system metrics that are always zero."""
    found: dict[str, bool] = {}
    for run in runs:
        for lines in (run.system if system else run.metrics).values():
            for point in lines.points:
                for name, value in point.values.items():
                    found[name] = found.get(name, not system) or value != 0
    return [name for name, worth in found.items() if worth]


def training(runs: list[Run], name: str) -> list[Series]:
    """Return the values of each run's first rank. Reduced values are equal on all ranks."""
    return [curve for color, run in enumerate(runs) for curve in _first_rank(run, name, color)]


def _first_rank(run: Run, name: str, color: int) -> Iterator[Series]:
    for lines in run.metrics.values():
        points = [
            (float(point.step), point.values[name])
            for point in lines.points
            if name in point.values and point.step is not None
        ]
        if points:
            yield series(run.label, color, points)
            return


def system(runs: list[Run], name: str) -> list[Series]:
    """Return a curve for each rank.

    A single run has a colour for each rank. Several runs have a colour each, which is fainter for
    ranks after the first.
    """
    if len(runs) == 1:
        return [
            series(f"rank {rank}", rank, over_time(lines, name))
            for rank, lines in runs[0].system.items()
            if over_time(lines, name)
        ]
    return [
        series(
            f"{run.label}, rank {rank}",
            color,
            over_time(lines, name),
            faint=rank != min(run.system),
        )
        for color, run in enumerate(runs)
        for rank, lines in run.system.items()
        if over_time(lines, name)
    ]


def over_time(lines: Lines, name: str) -> list[tuple[float, float]]:
    return [
        (point.time_s, point.values[name])
        for point in lines.points
        if name in point.values and math.isfinite(point.time_s)
    ]
