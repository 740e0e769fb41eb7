"""A plain loop that any launcher starts: launched.py FOLDER [OPTIONS] [TROUBLE].

Rank 0 writes the trained parameters to FOLDER. With "kill", one rank is killed by SIGKILL in
mid-course, once. With "slow", the first run takes some minutes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

EPOCHS, BATCH_SIZE = 8, 4


def train(batch_size: int, trouble: Callable[[int], None] = lambda epoch: None) -> list[float]:
    """The loop as anybody writes it."""
    torch.manual_seed(5)
    x = torch.randn(22, 5, dtype=torch.float64)  # the last global batch is ragged
    y = x.sin().sum(1, keepdim=True)
    model = torch.nn.Sequential(
        torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)
    ).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    loader = DataLoader(TensorDataset(x, y), batch_size, shuffle=True)
    for epoch in range(EPOCHS):
        for inputs, targets in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            trouble(epoch)
    return torch.cat([one.detach().reshape(-1) for one in model.parameters()]).tolist()


def kill(folder: Path) -> Callable[[int], None]:
    """Kill this rank by SIGKILL, once for all runs in the folder."""

    def now(epoch: int) -> None:
        if epoch == 3 and not (folder / "killed").exists():
            (folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    return now


def slow(folder: Path) -> Callable[[int], None]:
    """Take long, unless another run has taken long in the folder."""
    is_first = not (folder / "slow").exists()
    (folder / "slow").touch()
    return lambda epoch: time.sleep(20.0 if is_first else 0.0)


def run(folder: Path, options: dict[str, Any], trouble: str) -> None:
    with session(strategy="ddp", accelerator="cpu", **options) as s:
        troubled = {"kill": not s.is_main, "slow": True}.get(trouble, False)
        parameters = train(BATCH_SIZE, globals()[trouble](folder) if troubled else lambda _: None)
        if s.is_main:
            result = {"ranks": s.world_size, "by": s.world.launched_by, "parameters": parameters}
            (folder / "result.json").write_text(json.dumps(result))
            (folder / "explained").write_text(s.explain())


if __name__ == "__main__":
    given = [*sys.argv[2:], "{}", ""][:2] if len(sys.argv) < 4 else sys.argv[2:4]
    run(Path(sys.argv[1]), json.loads(given[0]), given[1])
