"""How long it takes from the command to the first step on two gloo ranks: new processes, by turns.

    python benchmarks/start.py [--rounds 7] [--json FILE]

Every contender trains one linear layer on the CPU, and prints a line after its first step; the time
ends when that line of rank 0 arrives. The first run of each is not counted.

- by hand: torchrun starts a script that makes the process group and wraps the model in DDP.
- torchbus: ``python train.py``, whose session starts the ranks.
- torchbus by torchrun: the same script, started as by hand.
- Fabric: ``python train.py``, whose ``Fabric.launch`` starts the other rank.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rounds import compared, show, write_json

LOOP = """
import torch
from torch import nn

def train(model, backward, optimizer):
    for _ in range(2):
        optimizer.zero_grad()
        backward(model(torch.ones(4, 8)).square().mean())
        optimizer.step()
        yield

"""
ONE = """
model = nn.Linear(8, 1)
for _ in train(model, torch.Tensor.backward, torch.optim.SGD(model.parameters(), 0.1)):
    print("stepped", flush=True)
"""
HAND = """
import torch.distributed as dist
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
for _ in train(model, torch.Tensor.backward, torch.optim.SGD(model.parameters(), 0.1)):
    if dist.get_rank() == 0:
        print("stepped", flush=True)
dist.destroy_process_group()
"""
TORCHBUS = """
from torchbus import session
with session(strategy="ddp", devices=2, accelerator="cpu") as s:
    model = nn.Linear(8, 1)
    for _ in train(model, torch.Tensor.backward, torch.optim.SGD(model.parameters(), 0.1)):
        if s.is_main:
            print("stepped", flush=True)
"""
FABRIC = """
from lightning.fabric import Fabric
fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
model = nn.Linear(8, 1)
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), 0.1))
for _ in train(model, fabric.backward, optimizer):
    if fabric.is_global_zero:
        print("stepped", flush=True)
"""
PYTHON = [sys.executable, "-u", "-W", "ignore"]
TORCHRUN = [*PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
CONTENDERS: dict[str, tuple[tuple[str, list[str]], Sequence[str]]] = {
    "by hand": ((HAND, TORCHRUN), ()),
    "by hand, again": ((HAND, TORCHRUN), ()),
    "torchbus": ((TORCHBUS, PYTHON), ("torchbus", "torchbus_ddp")),
    "torchbus by torchrun": ((TORCHBUS, TORCHRUN), ("torchbus", "torchbus_ddp")),
    "Lightning Fabric": ((FABRIC, PYTHON), ("lightning",)),
    "one process": ((ONE, PYTHON), ()),
}


def seconds(source: str, command: list[str]) -> float:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "train.py")
        script.write_text(LOOP + source)
        begun = time.perf_counter()
        with subprocess.Popen(
            [*command, str(script)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        ) as process:
            assert process.stdout is not None
            lines = iter(process.stdout)
            next(line for line in lines if line.startswith("stepped"))
            stepped_s = time.perf_counter() - begun
            for _ in lines:
                pass
    assert process.returncode == 0, script
    return stepped_s


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="runs of each (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    options = parser.parse_args()
    rows = compared(
        CONTENDERS, lambda name: seconds(*CONTENDERS[name][0]), options.rounds, "by hand"
    )
    cells = {row.contender: [f"{row.seconds:.2f}", f"{row.ratio:.2f}"] for row in rows}
    header = ["started", "seconds", "ratio to by hand"]
    show("From the command to the first step, two ranks", header, cells, CONTENDERS)
    write_json({"start": rows}, options)


if __name__ == "__main__":
    main()
