"""What it costs a rank to know its indices of one step, at world sizes that this machine does not
have.

    python benchmarks/order_step.py [--batch-size 32] [--steps 400] [--rounds 7] [--json FILE]

One object of one rank gets these world sizes, and gives the indices of ``--steps`` steps of
the same pass; the median over ``--rounds`` passes of the mean step is printed, in microseconds of
this process's CPU time. A pass's first step, in which torch's samplers draw, and its end, where
memory is freed, are not counted; benchmarks/data_scale.py measures the first.

- arrays: torch's samplers (shuffled, sequential, with replacement), as a session divides them.
- iterated: the same order by a sampler of a class that torchbus does not know, which is drawn one
  index at a time.
- DistributedSampler: torch's own, in a BatchSampler.

"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler

from torchbus_sampler.order import DividedOrder
from torchbus_sampler.orders.shared import SharedArrays
from torchbus_sampler.orders.sliced import SlicedOrder
from torchbus_strategy.random_streams import RandomStreams

WORLD_SIZES = (2, 8, 64, 512, 4096)
ITERATED_STEPS = 20  # of those that cost milliseconds, fewer


class Own(RandomSampler):
    """A class of the script's own."""

    def __iter__(self) -> Iterator[int]:
        return super().__iter__()


def divided(make: Callable[[range], Any], ranks: int, batch: int, steps: int) -> Iterator[Any]:
    inner = BatchSampler(make(range(ranks * batch * steps)), batch, False)
    order = SlicedOrder(
        inner, ranks - 1, ranks, ranks, True, RandomStreams(), memory=SharedArrays()
    )
    return taken(order)


def taken(order: DividedOrder) -> Iterator[Any]:
    for indices in order:
        order.pending.popleft()
        yield indices


def distributed(ranks: int, batch: int, steps: int) -> Iterator[Any]:
    sampler = DistributedSampler(range(ranks * batch * steps), ranks, ranks - 1)  # type: ignore[arg-type]
    return iter(BatchSampler(sampler, batch, False))


CONTENDERS: dict[str, tuple[Callable[[int, int, int], Iterator[Any]], bool]] = {
    "arrays, shuffled": (partial(divided, RandomSampler), False),
    "arrays, sequential": (partial(divided, SequentialSampler), False),
    "arrays, with replacement": (partial(divided, partial(RandomSampler, replacement=True)), False),
    "iterated": (partial(divided, Own), True),
    "DistributedSampler": (distributed, False),
}


def step_us(
    begin: Callable[[int, int, int], Iterator[Any]], ranks: int, batch: int, steps: int
) -> float:
    """Mean microseconds of the steps of a pass after its first."""
    indices = begin(ranks, batch, steps + 2)
    next(indices)
    begun = time.process_time()
    count = sum(1 for _ in islice(indices, steps))
    return (time.process_time() - begun) / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'us per step, ranks:':26}" + "".join(f"{ranks:>10,}" for ranks in WORLD_SIZES))
    found = {}
    for name, (begin, is_slow) in CONTENDERS.items():
        steps, rounds = (ITERATED_STEPS, 3) if is_slow else (args.steps, args.rounds)
        found[name] = [
            statistics.median(step_us(begin, ranks, args.batch_size, steps) for _ in range(rounds))
            for ranks in WORLD_SIZES
        ]
        print(f"{name:26}" + "".join(f"{value:10.1f}" for value in found[name]), flush=True)
    if args.json:
        args.json.write_text(
            json.dumps({"world_sizes": WORLD_SIZES, "us_per_step": found}, indent=1)
        )


if __name__ == "__main__":
    main()
