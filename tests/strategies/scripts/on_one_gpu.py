"""One rank of two that share a GPU: on_one_gpu.py STRATEGY OPTIONS DTYPE.

Each rank takes itself for the only one of its machine, so both take the first device. Rank 0 prints
the largest difference of its parameters to one process, where the largest value is 1.
"""

import json
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

torch.set_default_dtype(getattr(torch, sys.argv[3]))


def train(device):
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(44, 8), torch.randn(44, 4))
    model = nn.Sequential(
        nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4)
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(2):
        for x, y in DataLoader(data, batch_size=12, shuffle=True):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x.to(device)), y.to(device)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    parameters = model.state_dict().values()
    whole = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in parameters]
    return torch.cat([value.reshape(-1).cpu() for value in whole])


with session(
    strategy=sys.argv[1],
    devices=1,
    accelerator="gpu",
    **{"backend": "gloo"} | json.loads(sys.argv[2]),
) as s:
    assert s.world_size == 2
    print(s.device, file=sys.stderr)
    ours, is_main = train(s.device), s.is_main
alone = train("cuda:0")
if is_main:
    print(float((ours - alone).abs().max() / alone.abs().max()))
