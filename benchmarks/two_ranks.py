"""What benchmarks of two gloo ranks share: the group, the clock of a loop, and the tables."""

from __future__ import annotations

import argparse
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from rounds import Batches, Row, Stopwatch, interleave, summarise, table, write_json

WARMUP = 12
"""A session makes one more call of the process group in each of its first ten backwards."""
BY_HAND = "by hand"
Loop = Callable[[Batches], None]
Pairs = Mapping[str, Mapping[str, Loop]]
"""By engine, the contenders: one is "by hand"."""


@contextmanager
def group() -> Iterator[None]:
    """The two ranks that torchrun has started, with one thread each."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    yield
    dist.barrier()
    dist.destroy_process_group()


def timed(loop: Loop, batch: Callable[[], Any], steps: int, quantile: float) -> float:
    """Seconds per step of a loop over one batch."""
    watch = Stopwatch(WARMUP, steps, quantile)
    made = batch()
    dist.barrier()
    loop(Batches(made, watch))
    return watch.seconds_per_step()


def race(pairs: Pairs, batch: Callable[[], Any], options: argparse.Namespace) -> None:
    """Let the contenders of each engine take turns, and print a table for each."""
    results: dict[str, list[Row]] = {}
    for name, loops in pairs.items():
        calls = {
            who: functools.partial(timed, loop, batch, options.steps, options.quantile)
            for who, loop in loops.items()
        }
        results[name] = summarise(interleave(calls, options.rounds), BY_HAND)
        if dist.get_rank() == 0:
            lines = [
                [row.contender, f"{row.seconds * 1e3:.2f}", f"{row.ratio:.3f}"]
                for row in results[name]
            ]
            title = f"{name}: {options.rounds} rounds of {options.steps} steps"
            print(table(title, ["contender", "ms/step", "ratio"], lines), flush=True)
    if dist.get_rank() == 0:
        write_json(results, options)
