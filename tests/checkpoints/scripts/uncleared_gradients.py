"""A loop that never clears its gradients ends early, or goes on and is compared with one that did
not end: ``uncleared_gradients.py STRATEGY ends|goes_on``.
"""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

OPTIONS = {"strategy": sys.argv[1], "devices": 2, "accelerator": "cpu", "batch": "global"}
DATA = torch.randn(48, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def train(ends_at: int | None = None, **options: object) -> torch.Tensor:
    with session(**OPTIONS, launch="fork", **options):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1)
        ).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for number, (x,) in enumerate(DataLoader(TensorDataset(DATA), batch_size=8)):
            model(x).square().mean().backward()
            optimizer.step()
            if number == ends_at:
                raise SystemExit(7)
    return torch.cat([one.detach().flatten() for one in model.parameters()])


saves = {"checkpoint": "checkpoints", "every_n_steps": 1}
if sys.argv[2] == "ends":
    train(3, **saves)
resumed = train(**saves)
print(torch.equal(resumed, train()))
