import json

import torch
from torch import nn
from torchbus import session

torch.set_default_dtype(torch.float64)


def train(mine, adopt=lambda tensor: tensor):
    torch.manual_seed(0)
    data = torch.randn(4, 8, 3, generator=torch.Generator().manual_seed(1))
    net, scale = nn.Linear(3, 1), torch.ones(3, requires_grad=True)
    shift = adopt(torch.zeros(3, requires_grad=True))
    optimizer = torch.optim.SGD([*net.parameters(), scale], lr=0.1, momentum=0.9)
    for x in data:
        for half in x[mine].chunk(2):  # two backwards, which add up
            net(half * scale + shift).square().mean().backward()
        with torch.no_grad():
            shift -= 0.1 * shift.grad
        shift.grad = None
        optimizer.step()
        optimizer.zero_grad()
    return scale.detach().tolist() + shift.tolist()


found = {"alone": train(torch.tensor([0, 1, 4, 5, 2, 3, 6, 7]))}
