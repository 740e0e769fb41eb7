import logging
import sys
import time

import torch
from torch.utils.data import DataLoader
from torchbus import session

from torchbus_progress import listener, outputs
from torchbus_progress.listener import Progress

logging.basicConfig(level=logging.INFO, format="%(message)s")

listener.LARGEST_PART = 1e6  # so that every batch is drawn, however slow the machine is
outputs.Terminal.pause_s = 0.0
outputs.LONG_PASS_S = 1e6


def train(loader, net, optimizer, each=lambda step: None):
    for step, x in enumerate(loader):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        each(step)


net = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
torch.nn.init.ones_(net.weight)
torch.nn.init.zeros_(net.bias)
loader = DataLoader(torch.ones(40, 1))
