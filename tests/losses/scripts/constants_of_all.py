"""Sums over a number of samples or elements that one process knows: of the batch, of the data."""

import json
import sys

import torch
from torch.nn.functional import cross_entropy, logsigmoid, softplus
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

torch.set_default_dtype(torch.float64)
BATCH, SAMPLES = 16, 56  # the ragged end has half a batch
g = torch.Generator().manual_seed(1)
x, y = torch.randn(SAMPLES, 5, generator=g), torch.randint(0, 3, (SAMPLES,), generator=g)
LOSSES = {
    "over the batch": lambda out, y, w: cross_entropy(out, y, reduction="sum") / BATCH,
    "over the data": lambda out, y, w: cross_entropy(out, y, reduction="sum") / SAMPLES,
    "over elements": lambda out, y, w: out.square().sum() / (BATCH * 3),
    "over elements, beside a mean": lambda out, y, w: (
        cross_entropy(out, y) + out.square().sum() / (BATCH * 3)
    ),
    "of selected rows": lambda out, y, w: (
        softplus(-out[y == 1, 0]).sum() / BATCH - logsigmoid(out[y != 1, 0]).sum() / BATCH
    ),
    "picked": lambda out, y, w: (
        cross_entropy(out, y) - out.log_softmax(1).gather(1, y[:, None]).squeeze(1).sum() / BATCH
    ),
    "of means": lambda out, y, w: (
        softplus(out[y == 1]).mean(1).mean() + out.exp().log1p().sum() / BATCH
    ),
    "beside a mean": lambda out, y, w: cross_entropy(out, y) + out.square().sum() / BATCH,
    "with a factor": lambda out, y, w: cross_entropy(out, y) + 0.1 * out.square().sum() / BATCH,
    "with a penalty": lambda out, y, w: (
        cross_entropy(out, y, reduction="sum") / BATCH + 0.01 * w.square().sum()
    ),
    "with two penalties": lambda out, y, w: (
        out.square().sum() / (BATCH * 3) + 0.01 * w.abs().sum() + 0.1 * w.norm()
    ),
    "of a mean, over a window": lambda out, y, w: (
        cross_entropy(out, y, label_smoothing=0.1) / BATCH
    ),
    "data, with a factor": lambda out, y, w: (
        cross_entropy(out, y) + 3 * out.square().sum() / SAMPLES
    ),
}


def train(loss_of, epochs=2):
    net = torch.nn.Linear(5, 3)
    torch.nn.init.ones_(net.weight), torch.nn.init.zeros_(net.bias)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    shown = []
    for _ in range(epochs):
        for rows, labels in DataLoader(TensorDataset(x, y), BATCH):
            optimizer.zero_grad()
            loss = loss_of(net(rows), labels, net.weight)
            loss.backward()
            optimizer.step()
            shown.append(loss.item())
    return torch.cat([net.weight.detach().flatten(), torch.tensor(shown)])


apart = {}
for name, loss_of in LOSSES.items():
    with session(strategy="ddp", devices=int(sys.argv[1]), launch="fork", batch="global"):
        found = train(loss_of)
    apart[name] = float((found - train(loss_of)).abs().max())
with session(strategy="ddp", devices=int(sys.argv[1]), launch="fork", batch="global"):
    train(lambda out, y, w: cross_entropy(out, y))
    found = train(LOSSES["over the batch"])
apart["after a mean"] = float((found - train(LOSSES["over the batch"])).abs().max())
print(json.dumps(apart))
