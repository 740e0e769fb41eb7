"""A plain loop on the ranks that files of `accelerate config` describe, one file after the other.

The word is JSON: for each file its path, more options of the session, and the batch size, norm and
precision with which one process does the same. Prints the results of both, as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

ROWS, BATCH = 23, 6


def train(batch: int, norm: float | None = None) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    x = torch.randn(ROWS, 3)
    for _ in range(3):
        for inputs, targets in DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            if norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), norm)
            optimizer.step()
    return [value for one in model.state_dict().values() for value in one.flatten().tolist()]


def both(path: str, options: dict[str, Any], batch: int, norm: float | None, how: str) -> Any:
    torch.set_default_dtype(torch.float64 if how == "float64" else torch.float32)
    alone = train(batch, norm)
    if how == "bf16":
        with session(precision="bf16-mixed"):
            alone = train(batch, norm)
    with session(strategy="accelerate", accelerate_config=path, **options) as s:
        together = train(BATCH // s.world_size)
        apart = max(abs(one - other) for one, other in zip(alone, together, strict=True))
        return {"ranks": s.world_size, "apart": apart, "explained": " ".join(s.explain().split())}


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = [both(*case) for case in json.loads(sys.argv[1])]
    print("found", json.dumps(found))
