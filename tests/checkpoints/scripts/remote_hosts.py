import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

os.chdir(os.path.join(sys.argv[1], "host" + os.environ["GROUP_RANK"]))  # no host sees the other's
url, cut = "file://" + sys.argv[1] + "/store", int(sys.argv[2])
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 2))
with session(strategy="ddp", accelerator="cpu", checkpoint=url, every_n_steps=2, keep=2) as s:
    model = nn.Sequential(nn.Linear(2, 4), nn.Dropout(), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    count = 0
    for epoch in s.epochs(2):
        for (x,) in DataLoader(data, batch_size=4, shuffle=True):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            count += 1
            if count == cut:
                raise SystemExit(3)
    if s.is_main:
        print(
            count, s.explain().count("resumed from"), [p.sum().item() for p in model.parameters()]
        )
