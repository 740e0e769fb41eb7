"""Tries learning rates, trains with the one that is suggested, and saves what it found."""

import json
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

options, ends_at, path = json.loads(sys.argv[1])
with session(**options) as s:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
    ).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x = torch.randn(60, 4, dtype=torch.float64)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=12, shuffle=True)

    def step(batch):
        x, y = batch
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    found = s.find_lr(step, optimizer, loader, steps=25)
    assert len(set(s.all_gather_object(found))) == 1
    for group in optimizer.param_groups:
        group["lr"] = found.suggestion
    losses, done = [], 0
    for _ in s.epochs(2):
        for batch in loader:
            losses.append(step(batch).item())
            done += 1
            if done == ends_at:
                raise SystemExit(7)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    if s.is_main:
        torch.save({"found": [found.lrs, found.losses], "losses": losses, "state": state}, path)
