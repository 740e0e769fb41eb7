"""(c) Ranks: two that share one GPU over gloo, one over the GPU's backend, all GPUs if several."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from common import arguments, device, row, seconds_per_step
from torch import nn

PART = "ranks"


def train(backend: str | None, small: bool, sim: bool) -> None:
    """One rank of several, which share a device: each takes itself for the only one of its host."""
    from torchbus import session

    with session(strategy="ddp", backend=backend, devices=1) as s:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 1)).to(s.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x = torch.randn(32, 64, device=s.device)

        def step() -> None:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        seconds = seconds_per_step(step, 5 if small else 100)
        same = all(torch.equal(model[0].weight, one) for one in s.all_gather(model[0].weight))
        if s.is_main:
            used = dist.get_backend() if dist.is_initialized() else "no group"
            what = f"{s.world_size} rank(s) on one device, {used}: equal {same}"
            row(PART, what, seconds * 1e6, "us")


def start(size: int, backend: str) -> None:
    """The ranks as processes, each on a separate host."""
    from torchbus_testing.environments import run_on_separate_hosts

    os.environ["KIT_BACKEND"] = backend
    for rank in run_on_separate_hosts([__file__, *sys.argv[1:]], size, 150):
        print(rank.ok().stdout, end="")
    del os.environ["KIT_BACKEND"]


def main() -> None:
    given = arguments()
    if "KIT_BACKEND" in os.environ:
        return train(os.environ["KIT_BACKEND"] or None, given.small, given.sim)
    start(2, "" if given.sim else "gloo")
    start(1, "")
    count = torch.accelerator.device_count()
    if count > 1 and not given.sim:
        print(f"{count} devices of {device().type}: run benchmarks/ddp_step.py by torchrun")


if __name__ == "__main__":
    main()
