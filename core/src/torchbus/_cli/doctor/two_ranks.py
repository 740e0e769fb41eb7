"""The self-test: trains on two ranks, then in one process, and prints one JSON object."""

from __future__ import annotations

import json
import time

import torch
from torch.nn import Linear, Sequential, Tanh
from torch.nn.functional import mse_loss
from torch.nn.utils import parameters_to_vector

from torchbus import session

STEPS = 20
BATCH_SIZE = 8


def train(rank: int = 0, world_size: int = 1) -> tuple[torch.Tensor, float]:
    """Train on this rank's share of every batch; return the parameters and the seconds it took."""
    torch.manual_seed(0)
    model = Sequential(Linear(4, 16), Tanh(), Linear(16, 1)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    began = time.perf_counter()
    for _ in range(STEPS):
        x = torch.randn(BATCH_SIZE, 4, generator=generator, dtype=torch.float64).chunk(world_size)[
            rank
        ]
        optimizer.zero_grad()
        mse_loss(model(x), x.sin().sum(1, keepdim=True)).backward()
        optimizer.step()
    return parameters_to_vector(model.parameters()).detach(), time.perf_counter() - began


def main() -> None:
    with session(strategy="ddp", devices=2, accelerator="cpu", backend="gloo", timeout_s=60.0) as s:
        together, train_s = train(s.rank, s.world_size)
    alone, _ = train()
    difference = ((together - alone).abs().max() / alone.abs().max()).item()
    print(json.dumps({"difference": difference, "steps": STEPS, "train_s": train_s}))


if __name__ == "__main__":
    main()
