import json

import torch
from torch import nn
from torchbus import session

from torchbus_compress.plugin import WITHOUT_STRATEGY

found = {}


def run(algorithm):
    torch.manual_seed(0)
    x = torch.randn(320, 20)
    y = (x[:, :3].sum(1) > 0).long()
    with session(
        strategy="ddp", devices=2, accelerator="cpu", launch="fork", gradient_algorithm=algorithm
    ) as s:
        model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        mine = slice(s.rank * 160, s.rank * 160 + 160)
        losses = []
        for epoch in range(5):
            for a, b in zip(x[mine].split(16), y[mine].split(16)):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(a), b)
                plain = s.reduce(loss)
                loss.backward()
                losses.append(abs(loss.item() - plain.item()))
                optimizer.step()
        text = s.explain() if algorithm in ("bytegrad", "local_sgd") else ""
    return [float((model(x).argmax(1) == y).float().mean()), max(losses), text], model


for algorithm in WITHOUT_STRATEGY:
    found[algorithm], _ = run(algorithm)
print(json.dumps(found))
