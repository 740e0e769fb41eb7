"""One backward on two ranks, by a strategy whose ``average`` does no such thing."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torchbus import session

from torchbus_strategy.strategy import Strategy


class Returns(Strategy):
    def average(self, tensors):
        return [tensor.clone() for tensor in tensors]


class Sums(Strategy):
    def average(self, tensors):
        for tensor in tensors:
            dist.all_reduce(tensor)


class LeavesOut(Strategy):
    def average(self, tensors):
        for tensor in tensors:
            if tensor.numel() > 8:
                dist.all_reduce(tensor)
                tensor /= dist.get_world_size()


with session(strategy=globals()[sys.argv[1]](), devices=2, launch="fork", accelerator="cpu"):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(4, 4)).mean().backward()
    optimizer.step()
