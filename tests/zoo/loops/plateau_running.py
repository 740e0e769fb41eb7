"""ReduceLROnPlateau fed with a running mean weighted by the batch size that the script
itself sees.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class AverageMeter:
    def __init__(self):
        self.sum = self.count = 0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n

    @property
    def avg(self):
        return self.sum / self.count


parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

g = torch.Generator().manual_seed(29)
x = torch.randn(57, 3, generator=g)
y = x.abs().sum(1, keepdim=True) + torch.randn(57, 1, generator=g)
loader = DataLoader(TensorDataset(x, y), batch_size=args.batch_size, shuffle=True)
model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
    optimizer, factor=0.5, patience=0, threshold=0.05
)

for epoch in range(5):
    losses = AverageMeter()
    for inputs, target in loader:
        loss = nn.functional.mse_loss(model(inputs), target)
        losses.update(loss.item(), inputs.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    scheduler.step(losses.avg)
    print(f"epoch {epoch} lr {scheduler.get_last_lr()[0]:g} loss {losses.avg:.5f}")
