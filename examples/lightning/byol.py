"""Lightning's BYOL as a plain loop: two views of each sample, and a teacher that follows.

::

    python examples/lightning/byol.py
    python examples/lightning/byol.py --ranks 2

The optimizer does not hold the teacher. It is updated after each step, on each rank from the same
weights, so it is the same on all.
"""

from __future__ import annotations

import argparse
import copy

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.utils.data import DataLoader, Dataset
from torchbus import Session, session


class Views(Dataset):
    """Two noisy views of each sample. The noise belongs to the sample: any rank draws the same."""

    def __init__(self, count: int) -> None:
        self.samples = torch.randn(count, 16, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = torch.randn(2, 16, generator=torch.Generator().manual_seed(index))
        first, second = self.samples[index] + 0.1 * noise
        return first, second


def net(inputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 8))


class BYOL(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.student, self.predictor = net(16), net(8)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return self.distance(first, second) + self.distance(second, first)

    def distance(self, seen: Tensor, other: Tensor) -> Tensor:
        predicted = normalize(self.predictor(self.student(seen)))
        return 2 - 2 * (predicted * normalize(self.teacher(other))).sum(-1).mean()

    @torch.no_grad()
    def follow(self, decay: float) -> None:
        for mine, theirs in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            mine.lerp_(theirs, 1 - decay)


def train(s: Session, epochs: int) -> None:
    model = BYOL()
    trained = [*model.student.parameters(), *model.predictor.parameters()]
    optimizer = torch.optim.Adam(trained, lr=0.01)
    loader = DataLoader(Views(64), batch_size=16, shuffle=True)
    for epoch in s.epochs(epochs):
        for first, second in loader:
            optimizer.zero_grad()
            loss = model(first, second)
            loss.backward()
            optimizer.step()
            model.follow(0.9)
        weights = sum(weight.abs().sum() for weight in model.teacher.parameters())
        s.print(f"epoch {epoch}: loss {loss:.5f}, teacher {weights:.4f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=3)
    given = parser.parse_args()
    with session(devices=given.ranks, accelerator="cpu", batch="global", seed=42) as s:
        train(s, given.epochs)


if __name__ == "__main__":
    main()
