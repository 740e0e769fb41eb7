"""(c) Ranks: two that share one GPU over gloo, one over the GPU's backend, all GPUs if several."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

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
    """The ranks as processes, told of each other as by a launcher with one rank on each host."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
    given |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "KIT_BACKEND": backend}
    command = [sys.executable, __file__, *sys.argv[1:]]
    ranks = [
        subprocess.Popen(
            command, env=os.environ | given | {"RANK": str(rank), "GROUP_RANK": str(rank)}
        )
        for rank in range(size)
    ]
    deadline = time.monotonic() + 150
    for rank in ranks:
        rank.wait(max(1.0, deadline - time.monotonic()))


def main() -> None:
    given = arguments()
    if "KIT_BACKEND" in os.environ:
        return train(os.environ["KIT_BACKEND"] or None, given.small, given.sim)
    start(2, "" if given.sim else "gloo")
    start(1, "")
    count = torch.accelerator.device_count()
    if count > 1 and not given.sim:
        many = f"import runpy, sys; sys.argv = {[str(__file__), *sys.argv[1:]]}"
        print(
            f"{count} devices of {device().type}: run benchmarks/ddp_step.py by torchrun", many[:0]
        )


if __name__ == "__main__":
    main()
