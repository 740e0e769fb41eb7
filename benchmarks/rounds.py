"""Rounds: every contender runs in turn, many times over, so that all of them meet the same noise.

What is compared are ratios and differences within a round; what is reported is their median over
the rounds.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import logging
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

Times = Mapping[str, Sequence[float]]
# batches after the timed ones: libraries that fetch one batch ahead are in full swing at both ends
SPARE = 4


class Stopwatch:
    """Times ``steps`` steps after ``warmup`` others, by an event for each batch that is asked for.

    ``quantile`` of the steps' times is the run's figure: 0.5 is the median; a low one holds on a
    busy machine, where most steps are interrupted.
    """

    def __init__(self, warmup: int, steps: int, quantile: float = 0.5) -> None:
        self.length = warmup + steps + SPARE
        self._timed = slice(warmup, warmup + steps + 1)
        self._quantile = quantile
        self._asked: list[float] = []

    def tick(self) -> None:
        self._asked.append(time.perf_counter())

    def seconds_per_step(self) -> float:
        assert len(self._asked) >= self.length, (
            f"{len(self._asked)} of {self.length} batches were asked for"
        )
        steps = sorted(end - begin for begin, end in pairwise(self._asked[self._timed]))
        return steps[min(int(self._quantile * len(steps)), len(steps) - 1)]


class Batches:
    """One batch, over and over."""

    def __init__(self, batch: Any, watch: Stopwatch) -> None:
        self._batch, self._watch = batch, watch

    def __len__(self) -> int:
        return self._watch.length

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self._watch.length):
            self._watch.tick()
            yield self._batch


@dataclass(frozen=True)
class Row:
    """One contender's line. ``seconds``: median per step. ``added``, ``ratio``: median of what it
    is in each round against the baseline; ``low`` and ``high`` are the ratio's quartiles.
    """

    contender: str
    seconds: float
    added: float
    ratio: float
    low: float
    high: float


def interleave(
    contenders: Mapping[str, Callable[[], float]], rounds: int
) -> dict[str, list[float]]:
    """Seconds per step of each contender in each round.

    The order is rotated; one round before the first is not counted.
    """
    names = list(contenders)
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds + 1):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            gc.collect()
            times[name].append(contenders[name]())
    return {name: values[1:] for name, values in times.items()}


def compared(
    contenders: Mapping[str, tuple[object, Sequence[str]]],
    run: Callable[[str], float],
    rounds: int,
    baseline: str,
) -> list[Row]:
    """Run the contenders whose modules are installed, by name: ``run`` returns seconds."""
    calls = {
        name: functools.partial(run, name)
        for name, (_, needs) in contenders.items()
        if installed(*needs)
    }
    return summarise(interleave(calls, rounds), baseline)


def summarise(times: Times, baseline: str) -> list[Row]:
    return [_row(name, values, times[baseline]) for name, values in times.items()]


def _row(name: str, values: Sequence[float], baseline: Sequence[float]) -> Row:
    ratios = [value / base for value, base in zip(values, baseline, strict=True)]
    added = [value - base for value, base in zip(values, baseline, strict=True)]
    low, _, high = (
        statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    )
    return Row(
        name,
        statistics.median(values),
        statistics.median(added),
        statistics.median(ratios),
        low,
        high,
    )


def add_options(parser: argparse.ArgumentParser, rounds: int) -> None:
    parser.add_argument(
        "--rounds",
        type=int,
        default=rounds,
        help="how often each contender runs (default: %(default)s)",
    )
    parser.add_argument(
        "--quantile",
        type=float,
        default=0.5,
        help="of a run's steps (default: 0.5, the median; less for a busy machine)",
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")


def silence() -> None:
    """Let no library warn or log between the tables."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)


def installed(*modules: str) -> bool:
    return all(find_spec(module) for module in modules)


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, aligned for the terminal."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    head, *body = [
        " | ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
        for line in lines
    ]
    rule = "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])])
    return "\n".join([title, "", f"| {head} |", f"|{rule}|", *(f"| {line} |" for line in body), ""])


def show(
    title: str, header: Sequence[str], cells: Mapping[str, Sequence[str]], contenders: Iterable[str]
) -> None:
    """Print a table with a line for each contender, also for those that are not installed."""
    missing = ["not installed", *[""] * (len(header) - 2)]
    rows = [[name, *cells.get(name, missing)] for name in contenders]
    print(table(title, header, rows), flush=True)


def write_json(results: Mapping[str, Sequence[Row]], options: argparse.Namespace) -> None:
    if options.json is not None:
        figures = {name: [asdict(row) for row in rows] for name, rows in results.items()}
        with open(options.json, "w") as file:
            json.dump({"options": vars(options), "results": figures}, file, indent=1)
