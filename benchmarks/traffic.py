"""Bytes on the wire for each step of training, by gradient algorithm, against allreduce.

All traffic of the loopback device is counted, so run it where nothing else is on it, as root or in a user namespace::

    unshare -rn sh -c "ip link set lo up; python benchmarks/traffic.py"
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import nn
from torchbus import session

from torchbus_compress.plugin import ALGORITHMS

STEPS = 40
SKIPPED = 12  # buckets are rebuilt, PowerSGD and local SGD begin later


def bytes_on_loopback() -> int:
    line = next(line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.split()[9])


def bytes_per_step(algorithm: str, ranks: int) -> float:
    """Sent by all ranks together, in one step."""
    with session(strategy="ddp", devices=ranks, accelerator="cpu", launch="fork", gradient_algorithm=algorithm) as s:
        model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)])
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        for step in range(STEPS):
            if step == SKIPPED:
                s.barrier()
                before = bytes_on_loopback()
            optimizer.zero_grad()
            model(torch.randn(8, 256)).square().mean().backward()
            optimizer.step()
        s.barrier()
        return (bytes_on_loopback() - before) / (STEPS - SKIPPED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print numbers only")
    options = parser.parse_args()
    sent = {algorithm: bytes_per_step(algorithm, options.ranks) for algorithm in ALGORITHMS}
    if options.json:
        print(json.dumps(sent))
        return
    print(f"{'algorithm':29}{'KiB a step':>12}{'of allreduce':>14}")
    for algorithm, count in sent.items():
        print(f"{algorithm:29}{count / 1024:12.1f}{count / sent['allreduce']:14.2f}")


if __name__ == "__main__":
    main()
