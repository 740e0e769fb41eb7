"""``sharded_save`` of one process; of several it is tested with the strategies."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session
from torchbus.errors import UsageError

from torchbus_checkpoint.disk import folder, parts
from torchbus_checkpoint.disk.choice import latest
from torchbus_checkpoint.errors import CheckpointError
from torchbus_cli.main import main


def train(s: Any, epochs: int = 2) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, amsgrad=True)
    loader = DataLoader(TensorDataset(torch.randn(8, 2)), batch_size=4, shuffle=True)
    for _ in s.epochs(epochs):
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    return model, optimizer


@pytest.fixture
def written(tmp_path: Path) -> Path:
    with session(checkpoint=tmp_path / "all", sharded_save=True) as s:
        train(s)
    assert [one.name for one in folder.found(tmp_path / "all")] == [
        "step-00000002",
        "step-00000004",
    ]
    return tmp_path / "all"


def values(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    states = [
        value for entry in optimizer.state_dict()["state"].values() for value in entry.values()
    ]
    return [*model.state_dict().values(), *states]


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("before", "after", "in_background"),
    [(True, True, True), (True, False, False), (False, True, False)],
)
def test_a_run_goes_on_with_it_and_without(
    tmp_path: Path, before: bool, after: bool, in_background: bool
) -> None:
    with session() as s:
        alone = train(s, 3)
    with session(checkpoint=tmp_path, sharded_save=before, async_save=in_background) as s:
        train(s, 2)
    with session(checkpoint=tmp_path, sharded_save=after, async_save=in_background) as s:
        resumed = train(s, 3)
        assert "resumed from" in s.explain()
    assert all(map(torch.equal, values(*resumed), values(*alone))) and len(values(*alone)) == 9 + 24


def test_what_is_in_one_and_how_to_convert_it(written: Path, tmp_path: Path) -> None:
    last = written / "step-00000004"
    assert sorted(os.listdir(last)) == [
        "manifest.json",
        "part-0.safetensors",
        "rank-0.safetensors",
        "training.safetensors",
    ]
    assert set(folder.manifest(last)["files"]) == {*os.listdir(last)} - {"manifest.json"}
    assert main(["checkpoint", "export", str(last), "-o", str(tmp_path)]) == 0
    with session() as s:
        model, _ = train(s)
    weights = torch.load(tmp_path / "model.pt", weights_only=True)
    assert list(weights) == list(model.state_dict()) and all(
        map(torch.equal, weights.values(), model.state_dict().values())
    )


@pytest.mark.parametrize("name", ["part-0.safetensors", "training.safetensors"])
def test_the_one_before_a_damaged_one_is_used(written: Path, name: str) -> None:
    content = (written / "step-00000004" / name).read_bytes()
    (written / "step-00000004" / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.warns(UserWarning, match=r"step-00000004 is damaged.*step-00000002"):
        assert latest(written) == written / "step-00000002"


@pytest.mark.parametrize("in_background", [False, True])
def test_a_disk_that_is_full_leaves_the_old_ones(
    written: Path, in_background: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits, write = resource.getrlimit(resource.RLIMIT_FSIZE), parts.write

    def write_little(*args: Any) -> list[str]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (700, limits[1]))  # no file grows further
        try:
            return write(*args)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    monkeypatch.setattr(parts, "write", write_little)
    words = "step-00000006 could not be written: File too large"
    with (
        pytest.raises(CheckpointError, match=words),
        session(checkpoint=written, sharded_save=True, async_save=in_background) as s,
    ):
        train(s, 3)
    assert sorted(os.listdir(written)) == ["step-00000002", "step-00000004"]


def test_another_model(written: Path) -> None:
    with (
        pytest.raises(
            CheckpointError, match=r"weight has shape \(3, 2\), and in model of this loop \(4, 2\)"
        ),
        session(checkpoint=written) as s,
    ):
        model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1, amsgrad=True)
        for _ in s.epochs(3):
            optimizer.step()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sharded_save": 1}, "sharded_save=1 is an int: it must be True or False"),
    ],
)
def test_bad_input(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        session(**options)
