"""Small models of common kinds. A sample has six numbers, or three for ``small_net``."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ConvNet(nn.Module):
    """A convolutional net with batch norm in evaluation mode, so that samples are independent."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.conv, self.norm, self.out = (
            nn.Conv2d(1, 4, 2),
            nn.BatchNorm2d(4),
            nn.Linear(8, outputs),
        )
        nn.init.constant_(self.norm.get_buffer("running_mean"), 0.1)
        self.norm.eval()

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.out(F.relu(self.norm(self.conv(x.view(-1, 1, 2, 3)))).flatten(1))
        return output


class Transformer(nn.Module):
    def __init__(self, outputs: int, layers: int = 1) -> None:
        super().__init__()
        self.embed, self.out = nn.Linear(1, 8), nn.Linear(8, outputs)
        self.layers = nn.Sequential(
            *[
                nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
                for _ in range(layers)
            ]
        )

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.out(self.layers(self.embed(x[:, :, None])))
        return outputs.mean(1)


def small_net(hidden: int) -> nn.Sequential:
    """Return a net for samples of three numbers, with the same parameters each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, hidden), nn.Tanh(), nn.Linear(hidden, 1))


def parameter_values(model: nn.Module) -> Tensor:
    """Return all parameters of a model, flattened into one tensor of dimension 1."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
