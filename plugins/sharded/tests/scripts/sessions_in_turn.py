"""Several sessions in one process; one rank keeps what another has released."""

import torch
from torch import nn
from torchbus import session

kept = []
values = []
for _ in range(3):
    with session(strategy="fsdp", accelerator="cpu", devices=1) as s:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(4, 4)).square().mean().backward()
        optimizer.step()
        if s.rank == 1:
            kept.append((model, optimizer))
        values.append(float(model[0].weight.full_tensor().double().sum()))
        s.print(len(set(values)))
