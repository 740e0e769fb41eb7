import sys

import torch
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

anew, cut = sys.argv[1] == "anew", int(sys.argv[2])
torch.manual_seed(0)


def make():
    return DataLoader(
        TensorDataset(torch.arange(8.0)),
        batch_size=2,
        shuffle=True,
        num_workers=1,
        persistent_workers=True,
    )


with session(checkpoint="checkpoints", every_n_steps=1) as s:
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    loader, num_steps = make(), 0
    for epoch in s.epochs(3):
        for (x,) in make() if anew else loader:
            optimizer.zero_grad()
            (weight * x + torch.rand(1)).square().mean().backward()
            optimizer.step()
            num_steps += 1
            if num_steps == cut:
                sys.exit("cut")
print(weight.item())
