"""The middle stage, which has begun the most messages, waits for the last one at the loop's end."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torchbus import session

with session(strategy="pipeline", devices=3, accelerator="cpu", launch="fork") as s:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    last_two = dist.new_group([1, 2])
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(6, 4)).square().mean().backward()
        optimizer.step()
    if s.rank == 2:
        time.sleep(2)
    if s.rank > 0:
        dist.barrier(last_two)
    print("together" if s.is_main else "", end="")
