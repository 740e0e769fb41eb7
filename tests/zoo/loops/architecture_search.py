"""Weights and an architecture, which no module owns, in turn (DARTS, second order): the
architecture's gradients are put together by the script from backwards of a copy and from
autograd.grad, after other backwards.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(52, 4, generator=torch.Generator().manual_seed(64))
loader = DataLoader(TensorDataset(x, x.square()), batch_size=args.batch_size, shuffle=True)
model, copy = nn.Linear(4, 4), nn.Linear(4, 4)
alpha = torch.ones(4, requires_grad=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
searcher = torch.optim.SGD([alpha], lr=0.1)


def loss_of(net, inputs, targets):
    return nn.functional.mse_loss(net(inputs * alpha), targets)


for epoch in range(2):
    for inputs, targets in loader:
        searcher.zero_grad()
        copy.load_state_dict(model.state_dict())
        copy.zero_grad()
        loss_of(copy, inputs, targets).backward()
        first = alpha.grad
        second = torch.autograd.grad(loss_of(model, inputs, targets), [alpha])[0]
        alpha.grad = first.detach() - 0.1 * second
        searcher.step()

        optimizer.zero_grad()
        loss_of(model, inputs, targets).backward()
        optimizer.step()
    print(f"epoch {epoch}: {alpha.sum().item():.6f}")
