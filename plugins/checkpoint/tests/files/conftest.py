"""Checkpoints that are there already."""

from __future__ import annotations

from pathlib import Path

import pytest
from torchbus import session

from torchbus_checkpoint.disk import folder

from .small_run import train


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A folder with two checkpoints."""
    with session("log", checkpoint=tmp_path / "all", every_n_epochs=1) as s:
        train(s)
    assert [one.name for one in folder.found(tmp_path / "all")] == [
        "step-00000004",
        "step-00000008",
    ]
    return tmp_path / "all"
