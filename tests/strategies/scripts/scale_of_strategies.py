import json

import torch
from torch.utils.data import DataLoader
from torchbus import session

from torchbus_sampler.plugin import Sampler

found = []
for options in (
    {"strategy": "ddp"},
    {"strategy": "dp"},
    {"strategy": "ddp2"},
    {"strategy": "ddp", "batch": "global"},
):
    plugins = [Sampler(batch=options.pop("batch"))] if "batch" in options else []
    with session(
        *plugins, **options, devices=2, accelerator="cpu", launch="fork", scale_lr="linear"
    ) as s:
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        steps = 0
        loader = DataLoader(torch.arange(32.0)[:, None], batch_size=8)
        for x in loader:
            optimizer.zero_grad()
            (model(x) - 1).square().mean().backward()
            optimizer.step()
            steps += 1
        found.append([round(optimizer.param_groups[0]["lr"], 9), steps, s.effective_batch_size])
print(json.dumps(found))
