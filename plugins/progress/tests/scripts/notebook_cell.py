import torch
from torch.utils.data import DataLoader
from torchbus import session

with session(progress=True) as s:
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for x in DataLoader(torch.ones(4, 1)):
        optimizer.zero_grad()
        loss = (weight * x).sum()
        loss.backward()
        optimizer.step()
    print("mine")
