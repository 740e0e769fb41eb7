"""Objects made before the block: what each rank gets a copy of, in MiB, and what it finds."""

import gc
import json
import weakref
from pathlib import Path

import torch
from torch import nn
from torchbus import session


def private() -> float:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty")) / 1024


gc.unfreeze()  # what runs this script may have frozen itself
before = private()
objects = [[number] for number in range(400_000)]
model = nn.Linear(1, 1)
made = private() - before
with session(strategy="ddp", devices=2, accelerator="cpu", launch="fork") as s:
    began = private()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
    gc.collect()
    copied = private() - began
    linear = next(line for line in s.explain().splitlines() if "Linear" in line)
    found = s.all_gather_object((made, copied, "synchronised in backward" in linear))
gone = weakref.ref(model)
model.itself, model = model, None
optimizer = None
gc.collect()
print(json.dumps({"ranks": found, "frozen": gc.get_freeze_count(), "gone": gone() is None}))
