"""A loop that evaluates averages in each epoch: prints which weights its model has afterwards.

Options as JSON. Once without and once with checkpoints, of which the best one's weights are loaded.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from torch.utils.data import DataLoader
from torchbus import session

VALUES = [3.0, 1.0, 2.0]


def weights(s: Any, model: torch.nn.Module) -> list[float]:
    """The whole weights, also of a model that is divided."""
    parts = [getattr(one, "full_tensor", lambda one=one: one)() for one in model.parameters()]
    return torch.cat([part.detach().flatten() for part in parts]).tolist()


def after(**options: Any) -> str:
    """Train in a session, and return the name of the weights after it."""
    torch.manual_seed(0)
    data = torch.randn(12, 2, dtype=torch.float64)
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    model.double()
    found: dict[str, list[float]] = {}
    with session(ema_decay=0.5, launch="fork", batch="global", **options) as s:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for epoch in s.epochs(len(VALUES)):
            model.train()
            for x in DataLoader(data, batch_size=6):
                optimizer.zero_grad()
                (model(x).square().mean() + model(x).mean()).backward()
                optimizer.step()
            found["trained at the end"] = weights(s, model)
            model.eval()
            found[f"averaged in epoch {epoch}"] = weights(s, model)
            s.log("val", VALUES[epoch])
    here = weights(None, model)
    return min(found, key=lambda name: sum(abs(a - b) for a, b in zip(found[name], here)))


given = json.loads(sys.argv[1])
best = {"checkpoint": "saved", "monitor": "val", "load_best": True}
print(json.dumps([after(**given), after(**given, **best)]))
