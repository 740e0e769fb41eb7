"""A GAN that freezes one model in the other's turn: running statistics are rank 0's on all ranks."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

data = TensorDataset(torch.randn(16, 3, generator=torch.Generator().manual_seed(0)))
with session(strategy="ddp", devices=2, launch="fork", print_all_ranks=True) as s:
    models = [nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in models]
    for (x,) in DataLoader(data, 4):
        for turn in (0, 1):
            models[turn].requires_grad_(True)
            models[1 - turn].requires_grad_(False)
            optimizers[turn].zero_grad()
            models[turn](x).square().mean().backward()
            optimizers[turn].step()
    means = torch.cat([model[1].running_mean for model in models])
    told = s.all_gather(means)
    if s.is_main:
        print("alike", all(torch.equal(one, means) for one in told))
