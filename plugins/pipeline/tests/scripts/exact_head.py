"""Loops that run once by themselves and once in a pipeline, and are compared."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

torch.set_default_dtype(torch.float64)


def mlp():
    layers = [nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 4)]
    return nn.Sequential(*layers)


class Block(nn.Module):
    def __init__(self, size, rate=0.0):
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(size), nn.Dropout(rate)
        self.attention = nn.MultiheadAttention(size, 2, batch_first=True)
        self.up, self.down = nn.Linear(size, 2 * size), nn.Linear(2 * size, size)

    def forward(self, x, mask=None):
        h = self.norm(x)
        x = x + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.dropout(self.down(F.gelu(self.up(x))))


class Transformer(nn.Module):
    """An embedding, repeated blocks that get a mask, and a head that is tied to the embedding."""

    def __init__(self, blocks=4, rate=0.0):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.blocks = nn.ModuleList(Block(8, rate) for _ in range(blocks))
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        length = tokens.shape[1]
        mask = torch.ones(length, length).triu(1).bool()
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, mask=mask)
        return self.head(x)


def numbers(rows=23):
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(
        torch.randn(rows, 6, generator=generator), torch.randn(rows, 4, generator=generator)
    )


def tokens(rows=23):
    found = torch.randint(11, (rows, 6), generator=torch.Generator().manual_seed(0))
    return TensorDataset(found[:, :-1], found[:, 1:])


def mean_squares(model, x, y):
    return F.mse_loss(model(x), y)


def next_token(model, x, y):
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def state_of(*things):
    """All numbers of models and optimizers, in one vector. All ranks call it."""
    found = []

    def take(value):
        if isinstance(value, torch.Tensor):
            found.append(value.detach().double().flatten())
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                take(value[key])
        elif isinstance(value, (list, tuple)):
            for item in value:
                take(item)

    for thing in things:
        take(thing.state_dict())
    return torch.cat(found)


def difference(alone, ours):
    return float((ours - alone).abs().max() / alone.abs().max())


def pipeline(devices, **options):
    return session(
        strategy="pipeline", devices=devices, accelerator="cpu", launch="fork", **options
    )
