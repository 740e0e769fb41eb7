"""A loop whose loss has a term for each sample; prints how far two ranks are from one process."""

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

x, y = torch.randn(2, 9, 5, 3, dtype=torch.float64).unbind()


def train():
    model = torch.nn.Linear(3, 3).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for xs, ys in DataLoader(TensorDataset(x, y), batch_size=4):
            optimizer.zero_grad()
            loss = sum(F.mse_loss(model(a), b) for a, b in zip(xs, ys)) / len(xs)
            loss.backward()
            optimizer.step()
    return model.weight.detach()


torch.manual_seed(0)
want = train()
with session(strategy="ddp", devices=2, batch="global", launch="fork", accelerator="cpu"):
    torch.manual_seed(0)
    got = train()
print(float((got - want).abs().max()))
