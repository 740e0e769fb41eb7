"""Killed after the last batch of an epoch, before the line that shows its loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(900)

LOOP = """
import contextlib, os, signal, sys, torch
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

ranks, kind, die = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])

def train(s):
    torch.manual_seed(0)
    x = torch.randn(24, 3)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=6, shuffle=True)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for epoch in s.epochs(4) if kind == "epochs" else range(4):
        total = 0.0
        for i, (a, b) in enumerate(loader):
            optimizer.zero_grad()
            loss = (model(a) - b).square().mean()
            loss.backward()
            optimizer.step()
            total += loss.item()
        if epoch == die:
            os.kill(os.getpid(), signal.SIGKILL)
        print(f"epoch {epoch} loss {loss.item():.9f} mean {total / (i + 1):.9f}", flush=True)

with session(devices=ranks, batch="global", checkpoint="kept", every_n_steps=2) as s:
    train(s)
"""


@pytest.mark.parametrize("kind", ["range", "epochs"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_line_after_the_loop_shows_what_it_would_have_shown(
    run: Any, tmp_path: Path, ranks: int, kind: str
) -> None:
    whole = run(LOOP, ranks, kind, -1, folder=tmp_path / "whole").ok().stdout.splitlines()
    killed = tmp_path / "killed"
    assert len(whole) == 4
    for epoch in (0, 2):
        ended = run(LOOP, ranks, kind, epoch, folder=killed)
        assert ended.status != 0 and ended.stdout.splitlines() == whole[:epoch], ended.stderr
    assert run(LOOP, ranks, kind, -1, folder=killed).ok().stdout.splitlines() == whole[2:]
