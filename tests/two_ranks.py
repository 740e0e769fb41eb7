"""A ten-line loop on one process and on two ranks, compared: what ``make.py versions`` runs."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from torchbus import session

LOOPS: dict[str, tuple[dict[str, Any], float]] = {
    "ddp": ({}, 1e-6),
    "accumulate": ({"accumulate_grad_batches": 2}, 1e-6),
    "bf16": ({"precision": "bf16-mixed"}, 1e-2),
}
"""The options of each loop, and how far two ranks may be from one process."""


def train(options: dict[str, Any], devices: int, launch: str) -> list[float] | None:
    given = {"batch": "global", "accelerator": "cpu", **options}
    with session(strategy="ddp", devices=devices, launch=launch, **given):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        samples = torch.utils.data.TensorDataset(torch.randn(48, 4), torch.randn(48, 1))
        for x, y in torch.utils.data.DataLoader(samples, batch_size=8):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
        return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


def apart(options: dict[str, Any]) -> float:
    one, two = (train(options, devices, "fork") for devices in (1, 2))
    return float((torch.tensor(one) - torch.tensor(two)).abs().max())


if __name__ == "__main__":
    name = sys.argv[1]
    print(json.dumps({"apart": apart(LOOPS[name][0]), "torch": torch.__version__}))
