"""A rank stops or leaves, and the other waits for it in a collective that runs on its device.

Its call has returned, as NCCL's do; ``sleep`` stands for the read of a number that needs it.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torchbus import session

import torchbus_simulator as accelerator

accelerator.load(devices=2)
with session(strategy="ddp", devices=2, launch="fork", hang_timeout=1.0, timeout_s=4.0) as s:
    torch.manual_seed(0)
    model = nn.Linear(4, 2).to(s.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.rand(8, 4, device=s.device) + s.rank).square().mean().backward()
    optimizer.step()
    if s.rank == 0:
        begun = dist.all_reduce(torch.ones(1, device=s.device), async_op=True)
        time.sleep(600)
    elif sys.argv[1] == "stops":
        time.sleep(599)
