"""Bytes on the wire for each step of training: by gradient algorithm, or by strategy.

All traffic of the loopback device is counted, so run it where nothing else is on it, as root or in
a user namespace::

    unshare -rn sh -c "ip link set lo up; python benchmarks/traffic.py"
    unshare -rn sh -c "ip link set lo up; python benchmarks/traffic.py --strategies"
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torchbus import session

from torchbus_compress.plugin import ALGORITHMS

STEPS = 40
WIDTH = 256
SKIPPED = 12  # buckets are rebuilt, PowerSGD and local SGD begin later


def bytes_on_loopback() -> int:
    line = next(
        line
        for line in Path("/proc/net/dev").read_text().splitlines()
        if line.strip().startswith("lo:")
    )
    return int(line.split()[9])


STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "ddp"},
    "ddp_sharded": {"strategy": "ddp_sharded"},
    "fsdp": {"strategy": "fsdp"},
    "fsdp, no reshard": {"strategy": "fsdp", "reshard_after_forward": False},
}
"""By the name that torchbus advise gives them."""


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(4)])
    return model, torch.optim.SGD(model.parameters(), lr=1e-4)


def bytes_per_step(ranks: int, **options: Any) -> float:
    """Sent by all ranks together, in one step."""
    with session(devices=ranks, accelerator="cpu", launch="fork", **options) as s:
        model, optimizer = model_and_optimizer()
        for step in range(STEPS):
            if step == SKIPPED:
                s.barrier()
                before = bytes_on_loopback()
            optimizer.zero_grad()
            model(torch.randn(8, WIDTH)).square().mean().backward()
            optimizer.step()
        s.barrier()
        return (bytes_on_loopback() - before) / (STEPS - SKIPPED)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--strategies", action="store_true", help="of strategies")
    parser.add_argument("--json", action="store_true", help="print numbers only")
    options = parser.parse_args()
    if options.strategies:
        first, asked = "ddp", STRATEGIES
    else:
        first = "allreduce"
        asked = {one: {"strategy": "ddp", "gradient_algorithm": one} for one in ALGORITHMS}
    sent = {name: bytes_per_step(options.ranks, **words) for name, words in asked.items()}
    if options.json:
        print(json.dumps(sent))
        return
    print(f"{'':29}{'KiB a step':>12}{f'of {first}':>14}")
    for name, count in sent.items():
        print(f"{name:29}{count / 1024:12.1f}{count / sent[first]:14.2f}")


if __name__ == "__main__":
    main()
