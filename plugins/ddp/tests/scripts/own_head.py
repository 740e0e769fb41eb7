import gc
import json
import weakref

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
data = torch.randn(22, 3)  # the last step has 3 samples on each rank, the others 4
net = nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
found = {"alike": []}


def train(x):
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
