import json

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

from torchbus_compress.plugin import WITHOUT_STRATEGY

found = {}
for algorithm in WITHOUT_STRATEGY:
    with session(
        strategy="ddp", devices=3, accelerator="cpu", launch="fork", gradient_algorithm=algorithm
    ) as s:
        model = nn.Linear(5, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loader = DataLoader(TensorDataset(torch.randn(40, 5)), batch_size=4)
        for step in range(9):
            optimizer.zero_grad()
            model(torch.randn(4, 5) + s.rank).square().mean().backward()
            optimizer.step()
        for _ in loader:
            pass
        found[algorithm] = [
            torch.equal(model.weight.detach(), other)
            for other in s.all_gather(model.weight.detach())
        ]
print(json.dumps(found))
