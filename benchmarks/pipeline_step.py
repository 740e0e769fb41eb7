"""What a step costs in a pipeline, against torch's own schedules used by hand: two gloo ranks.

    torchrun --nproc-per-node 2 benchmarks/pipeline_step.py [--rounds 10] [--steps 20] [--quantile
    0.5] [--width 512]

- by hand: each rank makes a ``PipelineStage`` of its layers; ``schedule.step`` with the loss as its
  loss function, then the step of an optimizer of these layers. Only the last rank knows the loss.
- torchbus: the plain loop. All ranks know the loss and, with gpipe, the outputs.
"""

from __future__ import annotations

import argparse
import functools

import torch
import torch.distributed as dist
from models import labels, mlp
from rounds import Batches, add_options
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.functional import cross_entropy
from torchbus import session
from two_ranks import group, race

LAYERS, MICROBATCHES, BATCH = 8, 4, 64
SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


def make_model(width: int) -> nn.Sequential:
    torch.manual_seed(0)
    model = mlp(LAYERS, width)
    assert isinstance(model, nn.Sequential)
    return model


def by_hand(schedule: str, width: int, batches: Batches) -> None:
    rank, half = dist.get_rank(), LAYERS
    model = make_model(width)
    own = model[:half] if rank == 0 else model[half:]
    stage = PipelineStage(own, rank, 2, torch.device("cpu"))
    runs = SCHEDULES[schedule](stage, MICROBATCHES, loss_fn=cross_entropy)
    optimizer = torch.optim.SGD(own.parameters(), lr=1e-2)
    for x, y in batches:
        optimizer.zero_grad()
        if rank == 0:
            runs.step(x)
        else:
            runs.step(target=y, losses=[])
        optimizer.step()


def by_torchbus(schedule: str, width: int, batches: Batches) -> None:
    with session(
        strategy="pipeline",
        accelerator="cpu",
        schedule=schedule,
        microbatches=MICROBATCHES,
        balance=[LAYERS, LAYERS + 1],
    ):
        model = make_model(width)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        for x, y in batches:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()


def batch(width: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(BATCH, width), labels(BATCH)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_options(parser, rounds=10)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--width", type=int, default=512)
    options = parser.parse_args()
    pairs = {
        name: {
            "by hand": functools.partial(by_hand, name, options.width),
            "by hand, again": functools.partial(by_hand, name, options.width),
            "torchbus": functools.partial(by_torchbus, name, options.width),
        }
        for name in SCHEDULES
    }
    with group():
        race(pairs, functools.partial(batch, options.width), options)


if __name__ == "__main__":
    main()
