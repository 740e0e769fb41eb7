"""Accuracy on handwritten digits for each gradient algorithm, against allreduce, on two ranks over
three seeds::

python benchmarks/accuracy.py
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torchbus import session

from torchbus_compress.plugin import WITHOUT_STRATEGY

TRAINED = 1500
EPOCHS = 10


def train(x: Tensor, y: Tensor, algorithm: str) -> nn.Module:
    with session(
        strategy="ddp", devices=2, accelerator="cpu", launch="fork", gradient_algorithm=algorithm
    ) as s:
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for epoch in range(EPOCHS):
            order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
            for batch in order.split(64):
                mine = batch[s.rank :: 2]
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[mine]), y[mine]).backward()
                optimizer.step()
    return model


def accuracy(algorithm: str, seed: int) -> float:
    """The part of the test samples that is recognised."""
    data = load_digits()
    x, y = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
    torch.manual_seed(seed)
    order = torch.randperm(len(x))
    training, test = order[:TRAINED], order[TRAINED:]
    model = train(x[training], y[training], algorithm)
    return float((model(x[test]).argmax(1) == y[test]).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = {
        algorithm: [accuracy(algorithm, seed) for seed in range(options.seeds)]
        for algorithm in WITHOUT_STRATEGY
    }
    for algorithm, values in found.items():
        print(
            f"{algorithm:30}",
            *(f"{value:.1%}" for value in values),
            f"mean {sum(values) / len(values):.1%}",
        )
    if options.json:
        options.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
