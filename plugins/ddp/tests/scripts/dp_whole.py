"""Forwards that can't be divided, or have several rows for each sample: dp_whole.py RANKS"""

import json
import sys
import warnings

import torch
from torch import nn
from torchbus import session

RANKS = int(sys.argv[1])
torch.set_default_dtype(torch.float64)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, x):
        return self.net(x)


class Episode(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 6), nn.Linear(6, 2)

    def forward(self, x):
        return self.head(self.lstm(x)[0])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.layer(x)


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(4), nn.Linear(4, 2)

    def forward(self, x):
        x = self.norm(x)
        return self.linear(x.reshape(2, 4, 4).mean(0))  # eight rows or none


class Crops(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.0), nn.LayerNorm(6))

    def forward(self, x):
        z = self.net(torch.cat([x, x * 1.1, x - 0.1]))
        return {
            "views": z,
            "heads": z.reshape(len(x), -1).reshape(len(x) * 6, -1),
            "one": z[: len(x)],
        }


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.out = (
            nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)),
            nn.Linear(4, 3),
        )

    def forward(self, x):
        p = self.gate(x).softmax(-1)
        self.losses = {"balance": ((p > 0.4).double().mean(0) * p.mean(0)).sum()}
        return p * self.out(x)


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        noise = torch.randn(2 * len(x), 4)  # the rows do not show their order
        return self.linear(torch.cat([x, 2 * x]) + noise)


def loss_of(out):
    if isinstance(out, dict):
        first, second, third = out["views"].chunk(3)
        pairs = (first * second).sum(1).mean() + (third - first).square().mean()
        return pairs + (out["heads"][::2] - out["heads"][1::2]).square().mean() + out["one"].mean()
    return out.square().mean()


def trained(kind):
    torch.manual_seed(0)
    net = kind()
    optimizer, found = torch.optim.SGD(net.parameters(), lr=0.1), []
    for step in range(4):
        if kind is Policy:
            with torch.no_grad():
                found.append([net(one).argmax().item() for one in torch.randn(6, 4)])
        loss = loss_of(net(torch.randn(8, 4))) + getattr(net, "losses", {}).get("balance", 0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found + [one.tolist() for one in net.state_dict().values()]


options = {"strategy": "dp"} if RANKS > 1 else {}
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    with session(
        **options, devices=RANKS, launch="fork" if RANKS > 1 else "auto", accelerator="cpu"
    ) as s:
        found = {
            kind.__name__: trained(kind)
            for kind in (Policy, Episode, Attention, Whole, Experts, Crops, Noisy)
        }
        print(json.dumps([found, [str(one.message) for one in warned]]))
