"""Memory of all ranks together, where the script makes data before its loop.

    python benchmarks/shared_memory.py [--ranks 1 2 4] [--mib 512]

Half of the data is one tensor, and half are small Python objects. Each rank trains some steps,
collects garbage, reads the tensor, and then its proportional share of pages (PSS) from
/proc/PID/smaps_rollup: a page that several processes share counts once in the sum. Linux only.

- torchrun by hand: each rank runs the script, and so makes the data.
- torchbus: ``with session(strategy="ddp", devices=N)`` after the data is made; ranks are forked.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rounds import table

OBJECT = 96  # bytes of a list of one small number, with its place in the list
MAKE = f"""
import gc, os, sys
from pathlib import Path
import torch
from torch import nn
half = int(sys.argv[1]) * 2**19
numbers = torch.ones(half // 4)
objects = [[number % 256] for number in range(half // {OBJECT})]

def train(model):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(5):
        optimizer.zero_grad()
        model(numbers[:8, None]).square().mean().backward()
        optimizer.step()
    gc.collect()
    float(numbers.sum())
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
"""
TORCHBUS = f"""{MAKE}
from torchbus import session
options = {{"devices": int(sys.argv[2]), "accelerator": "cpu", "launch": "fork"}}
with session(strategy="ddp", **options) as s:
    own = train(nn.Linear(1, 1))
    s.barrier()
    print(float(s.reduce(own, "sum")))
"""
BY_HAND = f"""{MAKE}
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor(train(nn.parallel.DistributedDataParallel(nn.Linear(1, 1))))
dist.all_reduce(total)
if dist.get_rank() == 0:
    print(float(total))
dist.destroy_process_group()
"""


def mib(command: Sequence[str], script: str, *arguments: str) -> float:
    path = Path(f"/dev/shm/torchbus_memory_{os.getpid()}.py")
    path.write_text(script)
    try:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        ran = subprocess.run(
            [*command, str(path), *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        path.unlink()
    return float(ran.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--mib", type=int, default=512, help="of data (default: %(default)s)")
    options = parser.parse_args()
    python = [sys.executable, "-W", "ignore"]
    lines = []
    for ranks in options.ranks:
        torchrun = [*python, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
        by_hand = mib(torchrun, BY_HAND, str(options.mib))
        bus = mib(python, TORCHBUS, str(options.mib), str(ranks))
        lines.append([str(ranks), f"{by_hand:.0f}", f"{bus:.0f}", f"{bus / by_hand:.2f}"])
    print(
        table(
            f"PSS of all ranks, with {options.mib} MiB of data, in MiB",
            ["ranks", "torchrun by hand", "torchbus", "ratio"],
            lines,
        )
    )


if __name__ == "__main__":
    main()
