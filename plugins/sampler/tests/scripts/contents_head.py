import json
import random
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset


def train(loader):
    net = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    seen = []
    for x, *_ in loader:
        optimizer.zero_grad()
        net(x.float().view(-1, 1)).mean().backward()
        optimizer.step()
        seen += x.flatten().tolist()
    return seen
