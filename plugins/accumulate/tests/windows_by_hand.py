"""One small training, twice: as anybody writes it, and with accumulation by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from torchbus_testing.models import parameter_values, small_net


def data(samples: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(samples, 3, generator=generator), torch.randn(
        samples, 1, generator=generator
    )


class Training:
    """A small net, its optimizer and a scheduler that goes by steps."""

    def __init__(
        self, make: Callable[..., torch.optim.Optimizer] | None = None, device: str = "cpu"
    ) -> None:
        self.device = device
        self.net = small_net(4).double().to(device)
        parameters = list(self.net.parameters())
        self.optimizer = (
            make(parameters) if make else torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        )
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.9)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.net(x.double().to(self.device)) - y.to(self.device)).square().mean()

    def values(self) -> Tensor:
        return parameter_values(self.net)


def unchanged(
    training: Training,
    loader: Any,
    epochs: int = 2,
    zero: str = "first",
    clip: Callable[..., Any] | None = None,
) -> Tensor:
    """What anybody writes: a step for each batch."""
    for _ in range(epochs):
        for x, y in loader:
            if zero == "first":
                training.optimizer.zero_grad()
            training.loss(x, y).backward()
            if clip:
                clip(training.net.parameters())
            training.optimizer.step()
            training.scheduler.step()
            if zero == "model":
                training.net.zero_grad()
            elif zero == "by hand":
                for parameter in training.net.parameters():
                    parameter.grad = None
    return training.values()


def by_hand(
    training: Training,
    samples: int,
    batch: int,
    window: int,
    epochs: int = 2,
    clip: Callable[..., Any] | None = None,
) -> Tensor:
    """Accumulation as it is written by hand, each batch weighted by its samples."""
    inputs, targets = data(samples)
    for _ in range(epochs):
        for start in range(0, samples, batch * window):
            training.optimizer.zero_grad()
            x, y = inputs[start : start + batch * window], targets[start : start + batch * window]
            for part, target in zip(x.split(batch), y.split(batch), strict=True):
                (training.loss(part, target) * (len(part) / len(x))).backward()
            if clip:
                clip(training.net.parameters())
            training.optimizer.step()
            training.scheduler.step()
    return training.values()


def loader(samples: int, batch: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*data(samples)), batch_size=batch)
