"""What a step costs under fsdp and ddp_sharded, against the same engines used by hand: two gloo
ranks, one job.

    torchrun --nproc-per-node 2 benchmarks/sharded_step.py [--rounds 20] [--steps 30] [--quantile
    0.5] [--optimizer Adam]

- fsdp by hand: ``fully_shard`` for each layer and for the model, a plain loop, ``all_reduce`` of
  the loss (which torchbus does, too).
- ddp_sharded by hand: ``DistributedDataParallel`` and ``ZeroRedundancyOptimizer``.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from models import Transformer, labels
from rounds import Batches, add_options
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torchbus import session
from two_ranks import group, race

LEARNING_RATE = 1e-3
Make = type[torch.optim.Optimizer]


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return Transformer(4, 128, 1000)


def train(
    model: Any, optimizer: torch.optim.Optimizer, batches: Batches, reduce_loss: bool
) -> None:
    for x, y in batches:
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        if reduce_loss:
            dist.all_reduce(loss.detach())
        optimizer.step()


def fsdp_by_hand(make: Make, batches: Batches) -> None:
    model = make_model()
    for layer in model.encoder.layers:  # type: ignore[union-attr]
        fully_shard(layer)
    fully_shard(model)
    train(model, make(model.parameters(), lr=LEARNING_RATE), batches, True)


def zero_by_hand(make: Make, batches: Batches) -> None:
    model = DistributedDataParallel(make_model())
    train(model, ZeroRedundancyOptimizer(model.parameters(), make, lr=LEARNING_RATE), batches, True)


def by_torchbus(strategy: str, make: Make, batches: Batches) -> None:
    with session(strategy=strategy, accelerator="cpu", replace_sampler=False):
        model = make_model()
        train(model, make(model.parameters(), lr=LEARNING_RATE), batches, False)


PAIRS: dict[str, dict[str, Callable[[Make, Batches], None]]] = {
    "fsdp": {
        "by hand": fsdp_by_hand,
        "by hand, again": fsdp_by_hand,
        "torchbus": functools.partial(by_torchbus, "fsdp"),
    },
    "ddp_sharded": {
        "by hand": zero_by_hand,
        "by hand, again": zero_by_hand,
        "torchbus": functools.partial(by_torchbus, "ddp_sharded"),
    },
}


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1 + dist.get_rank())
    return torch.randint(1000, (8, 32)), labels(8)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_options(parser, rounds=20)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--optimizer", default="Adam", help="a class of torch.optim")
    options = parser.parse_args()
    make = getattr(torch.optim, options.optimizer)
    pairs = {
        name: {who: functools.partial(loop, make) for who, loop in loops.items()}
        for name, loops in PAIRS.items()
    }
    with group():
        race(pairs, batch, options)


if __name__ == "__main__":
    main()
