import sys

import torch
from torch import nn
from torchbus import session

torch.set_default_dtype(torch.float64)


def train(mine, device):
    torch.manual_seed(0)
    x, y = torch.randn(24, 6).to(device), torch.randn(24, 2).to(device)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for a, b in zip(x.split(8), y.split(8)):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a[mine]), b[mine]).backward()
        optimizer.step()
    return torch.cat([value.reshape(-1) for value in model.state_dict().values()]).cpu()


strategy = sys.argv[1]
with session(strategy=strategy, devices=2, accelerator="gpu", replace_sampler=False) as s:
    ours = train(slice(None) if strategy == "dp" else slice(4 * s.rank, 4 * s.rank + 4), s.device)
alone = train(slice(None), "cuda:0")
print(float((ours - alone).abs().max() / alone.abs().max()) < 1e-9)
