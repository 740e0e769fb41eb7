"""The models of the benchmarks. No dropout, so that all contenders end with the same parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

CLASSES = 10


def mlp(layers: int, width: int) -> nn.Module:
    hidden = [module for _ in range(layers) for module in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(width, CLASSES))


class Block(nn.Module):
    """A residual block of seven modules, itself included."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.relu2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        inner = self.relu1(self.norm1(self.conv1(x)))
        return self.relu2(x + self.norm2(self.conv2(inner)))


def conv_net(blocks: int, channels: int) -> nn.Module:
    body = [Block(channels) for _ in range(blocks)]
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1),
        *body,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, CLASSES),
    )


class Transformer(nn.Module):
    """An encoder over token numbers, which classifies their mean."""

    def __init__(self, layers: int, width: int, tokens: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(x)).mean(dim=1))


def labels(batch: int) -> Tensor:
    return torch.randint(CLASSES, (batch,))
