"""fairseq's habit: an error in backward is caught, the batch skipped and training goes on."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class OutOfMemoryOnce(torch.autograd.Function):
    """Stands for the allocation that fails at one step."""

    failing = False

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        if OutOfMemoryOnce.failing:
            raise RuntimeError("out of memory")
        return grad


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.last(OutOfMemoryOnce.apply(self.first(x).relu()))


parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
x = torch.randn(51, 4, generator=torch.Generator().manual_seed(58))
loader = DataLoader(TensorDataset(x, x.abs()), batch_size=args.batch_size, shuffle=True)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
ooms = 0
for epoch in range(2):
    for step, (inputs, targets) in enumerate(loader):
        OutOfMemoryOnce.failing = epoch == 0 and step == 1
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        try:
            loss.backward()
        except RuntimeError as error:
            print(f"| WARNING: ran {error}, skipping batch")
            ooms += 1
            continue
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.5f}")
