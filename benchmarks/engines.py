"""What a step costs under tp and DeepSpeed, against the same engines used by hand: two gloo ranks.

    torchrun --nproc-per-node 2 benchmarks/engines.py [--rounds 10] [--steps 20] [--quantile 0.5]

- tp by hand: ``parallelize_module`` with the plan of the session.
- DeepSpeed by hand: ``deepspeed.initialize``, ``engine.backward`` and ``engine.step``, with the
  config of the session. It does not know the loss over all ranks.

``sharded_step.py`` compares fsdp and ddp_sharded, ``pipeline_step.py`` the schedules of a pipeline,
and ``ddp_step.py`` ddp.
"""

from __future__ import annotations

import argparse
import functools
import logging
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from models import labels, mlp
from rounds import Batches, add_options, installed
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy
from torchbus import session
from two_ranks import Loop, group, race

LAYERS, BATCH, LEARNING_RATE = 4, 64, 1e-3
PLAN = {f"{2 * layer}": ("colwise", "rowwise")[layer % 2] for layer in range(LAYERS)}
"""Of the Linears of ``mlp``: each pair divides what lies between its two layers."""
STYLES = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}
STAGES = (1, 2, 3)


def made(width: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = whole(width)
    return model, torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)


def whole(width: int) -> nn.Module:
    torch.manual_seed(0)
    return mlp(LAYERS, width)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Batches) -> None:
    for x, y in batches:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()


def tp_by_hand(width: int, batches: Batches) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    styles = {name: STYLES[style]() for name, style in PLAN.items()}
    model = parallelize_module(whole(width), mesh, styles)
    train(model, torch.optim.Adam(model.parameters(), lr=LEARNING_RATE), batches)


def tp_by_torchbus(width: int, batches: Batches) -> None:
    with session(strategy="tp", plan=PLAN, accelerator="cpu"):
        train(*made(width), batches)


def config(stage: int) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": BATCH,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }


def deepspeed_by_hand(stage: int, width: int, batches: Batches) -> None:
    import deepspeed

    without_own_collectives()
    model, optimizer = made(width)
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=config(stage), dist_init_required=False
    )
    for x, y in batches:
        loss = cross_entropy(engine(x), y)
        engine.backward(loss)
        engine.step()
    engine.destroy()


def without_own_collectives() -> None:
    """DeepSpeed would compile an all-reduce for CPUs; the session does without it, too."""
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]


def deepspeed_by_torchbus(stage: int, width: int, batches: Batches) -> None:
    zero = {"zero_optimization": {"stage": stage}}
    with session(strategy="deepspeed", config=zero, accelerator="cpu", replace_sampler=False):
        train(*made(width), batches)


def pairs(width: int) -> dict[str, dict[str, Loop]]:
    by_hand = functools.partial(tp_by_hand, width)
    found: dict[str, dict[str, Loop]] = {
        "tp": {
            "by hand": by_hand,
            "by hand, again": by_hand,
            "torchbus": functools.partial(tp_by_torchbus, width),
        }
    }
    for stage in STAGES if installed("deepspeed") else ():
        by_hand = functools.partial(deepspeed_by_hand, stage, width)
        found[f"deepspeed_stage_{stage}"] = {
            "by hand": by_hand,
            "by hand, again": by_hand,
            "torchbus": functools.partial(deepspeed_by_torchbus, stage, width),
        }
    return found


def batch(width: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(BATCH, width), labels(BATCH)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_options(parser, rounds=10)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--width", type=int, default=512)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    with group():
        race(pairs(options.width), functools.partial(batch, options.width), options)


if __name__ == "__main__":
    main()
