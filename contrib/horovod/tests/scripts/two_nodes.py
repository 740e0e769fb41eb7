"""Runs one rank on each of two nodes, which are both this machine."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

torch.manual_seed(0)
DATA = TensorDataset(torch.randn(21, 4), torch.randn(21, 1))


def train(size):
    torch.manual_seed(1)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in DataLoader(DATA, size):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


alone = train(8)
with session(strategy="horovod", accelerator="cpu", devices=1, num_nodes=2) as s:
    close = torch.allclose(train(4), alone, atol=1e-6)
    import horovod.torch as hvd

    place = [hvd.rank(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()]
print(close, place)
