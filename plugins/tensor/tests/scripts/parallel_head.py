"""A GPT whose last layer is its own, with targets that are ignored, and what it ends with."""

import torch
from tensor_head import GPT_PLAN, WIDTH, WORDS, Block, differ, words
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

PLAN = {**GPT_PLAN, "head": "colwise"}
CLASSES = 12


class Gpt(nn.Module):
    def __init__(self, drop=0.0, kernel=True):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList([Block(drop, kernel, True) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        x = self.words(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def data(samples=14):
    """Some targets are ignored, in unequal numbers."""
    x, y = words(samples).tensors
    y = y.clone()
    y[::3, 2:] = -100
    return TensorDataset(x, y)


def train(batch, make=Gpt, epochs=2, loss_of=F.cross_entropy, samples=14, clip=0.5):
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    seen = []
    for _ in range(epochs):
        for x, y in DataLoader(data(samples), batch, shuffle=True):
            optimizer.zero_grad()
            loss = loss_of(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            seen.append(nn.utils.clip_grad_norm_(model.parameters(), clip).item())
            optimizer.step()
            seen.append(loss.item())
        model.eval()
        with torch.no_grad():
            x, y = data(5).tensors
            seen.append(loss_of(model(x).flatten(0, 1), y.flatten()).item())
        model.train()
    return model, torch.tensor(seen)
