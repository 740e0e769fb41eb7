"""The optimizer holds only the head; the body also gets gradients, which remain unused."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 8), nn.GELU())
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.body(x))


g = torch.Generator().manual_seed(14)
x = torch.randn(55, 5, generator=g)
y = x[:, :3].argmax(1)
loader = DataLoader(TensorDataset(x, y), batch_size=args.batch_size, shuffle=True)
net = Net()
optimizer = torch.optim.RMSprop(net.head.parameters(), lr=1e-2)
for epoch in range(2):
    for data, target in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(data), target)
        loss.backward()
        optimizer.step()
    body_grad = sum(p.grad.abs().sum() for p in net.body.parameters())
    print(
        f"epoch {epoch} loss {loss.item():.5f} gradient of the body so far {body_grad.item():.5f}"
    )
