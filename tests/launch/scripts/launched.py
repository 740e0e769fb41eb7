"""A plain loop that any launcher starts: launched.py FOLDER OPTIONS TROUBLE.

Rank 0 writes the trained parameters to FOLDER. TROUBLE is once for all runs in a folder. With "kill",
rank 1 is killed by SIGKILL in mid-course. With "ask", another thread of its process asks that all
ranks save and leave. With "slow", the first run takes some minutes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session
from torchbus.session import Session

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


class Trouble:
    """What happens to this rank, unless it has happened to an earlier run in the folder."""

    def __init__(self, s: Session, folder: Path, kind: str) -> None:
        self._s, self._mark, self._kind = s, folder / f"{kind} {s.is_main}", kind
        self._is_due = bool(kind) and not self._mark.exists()

    def __call__(self, epoch: int) -> None:
        if not self._is_due or (epoch < 3 and self._kind != "slow"):
            return
        self._mark.touch()
        if self._kind == "slow":
            time.sleep(20.0)
        elif not self._s.is_main:
            self._is_due = False
            if self._kind == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            threading.Thread(target=self._s.save_and_leave).start()


def run(folder: Path, options: dict[str, Any], trouble: str) -> None:
    with session(strategy="ddp", accelerator="cpu", **options) as s:
        parameters = train(BATCH_SIZE, Trouble(s, folder, trouble))
        if s.is_main:
            result = {"ranks": s.world_size, "by": s.world.launched_by, "parameters": parameters}
            (folder / "result.json").write_text(json.dumps(result))
            (folder / "explained").write_text(s.explain())


if __name__ == "__main__":
    run(Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3])
