"""The command, and checkpoints for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchbus import session

from torchbus_cli.main import main

Said = tuple[int, str, str]
Call = Callable[..., Said]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """``torchbus checkpoint WORDS``: the exit status, and what it says."""

    def run(*words: Any) -> Said:
        capsys.readouterr()
        status = main(["checkpoint", *map(str, words)])
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A folder with two checkpoints of a model that is named ``net``."""
    with session("checkpoint") as s:
        net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
        optimizer = torch.optim.Adam(net.parameters())
        for step in (1, 2):
            net(torch.ones(2, 2)).sum().backward()
            optimizer.step()
            s.save(tmp_path / "all" / f"step-{step:08d}")
    return tmp_path / "all"


@pytest.fixture
def one(written: Path) -> Path:
    return written / "step-00000002"
