import gc
import json

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

gc.freeze()  # a session looks through all objects; those of torch need not be among them

torch.set_default_dtype(torch.float64)


def pairs(z):
    z = F.normalize(z, dim=1)
    return F.cross_entropy(z @ z.T / 0.5, torch.arange(len(z)).flip(0))


def train(batch_size, loss_of):
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(torch.randn(44, 6)), batch_size, shuffle=True)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    printed = []
    for epoch in range(2):
        for (x,) in loader:
            optimizer.zero_grad()
            loss = loss_of(model(x))
            loss.backward()
            optimizer.step()
            printed.append(loss.item())
    return torch.cat([torch.tensor(printed), *(p.detach().reshape(-1) for p in model.parameters())])


def of_two_nodes(z):
    half = (len(z) + 1) // 2
    return pairs(z[:half]) * half / len(z) + pairs(z[half:]) * (len(z) - half) / len(z)


with session(strategy="ddp2", accelerator="cpu") as s:
    ours = train(8, pairs)
    others = s.all_gather(ours)
    text = s.explain()
if s.is_main:
    alone = train(16, of_two_nodes)
    print(
        json.dumps(
            [
                float((ours - alone).abs().max() / alone.abs().max()),
                [o.equal(ours) for o in others],
                text,
            ]
        )
    )
