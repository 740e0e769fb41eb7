"""horovodrun runs this: two blocks, each compared with one process."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

torch.manual_seed(0)
DATA = TensorDataset(torch.randn(21, 4), torch.randn(21, 1))


def train(size):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for x, y in DataLoader(DATA, size):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


alone, close = train(8), []
for _ in range(2):
    with session(strategy=sys.argv[1], accelerator="cpu") as s:
        close.append(torch.allclose(train(4), alone, atol=1e-6) and s.world_size == 2)
        launcher = s.world.launched_by
print(f"joined {launcher}, close to one process:", *close)
