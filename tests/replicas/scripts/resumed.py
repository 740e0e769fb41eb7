"""A replica that writes checkpoints, and is killed in its eleventh step if ``--die yes``."""

import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

from torchbus_ft.strategy import FT

words = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
name, out = words["--name"], Path(words["--out"])
x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0)).double()
steps = 0
torch.manual_seed(1)
least = int(words.get("--least", 1))
inside, devices = words.get("--inside", "ddp"), int(words.get("--devices", 1))
strategy = FT(
    lighthouse=words["--lighthouse"], replica=name, min_replicas=least, replica_strategy=inside
)
ledger = out / f"ledger-{name}-{os.getpid()}"
if words["--checkpoint"] == "yes":
    kept = {"checkpoint": out / f"checkpoints-{name}", "every_n_steps": 3}
else:
    kept = {}
kept["accumulate_grad_batches"] = int(words.get("--windows", 1))
with session(strategy=strategy, devices=devices, sample_ledger=ledger, launch="fork", **kept) as s:
    model = nn.Sequential(
        nn.Linear(4, 8), nn.Dropout(float(words.get("--drop", 0.2))), nn.Linear(8, 1)
    ).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(x), (4 if least > 1 else 8) // devices, shuffle=True)
    epochs = s.epochs(3) if words["--epochs"] == "s" else range(3)
    for _ in epochs:
        for (inputs,) in loader:
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            if words["--die"] == "yes" and steps == 10 and s.is_main:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.step()
            steps += 1
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "steps": steps}
    torch.save(state, out / f"end-{name}.pt")
