"""What is not written or resumed: another model, another optimizer, full disks, bad options."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torchbus import session
from torchbus.errors import UsageError

from torchbus_checkpoint.disk import folder
from torchbus_checkpoint.disk.choice import best
from torchbus_checkpoint.errors import CheckpointError
from torchbus_testing.state import assert_torch_unchanged, torch_state

from .small_run import train


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Linear(3, 1), r"weight has shape \(1, 2\), and in model of this loop \(1, 3\)"),
        (nn.Linear(2, 1, bias=False), "had other layers"),
        (nn.Sequential(nn.Linear(2, 1)), r"\(Linear\); this loop has model \(Sequential\)"),
    ],
)
def test_another_model(written: Path, model: nn.Module, words: str) -> None:
    with pytest.raises(CheckpointError, match=words), session("log", checkpoint=written) as s:
        train(s, model, epochs=3)


def test_another_optimizer(written: Path) -> None:
    words = r"\(Adam\); this loop has optimizer \(SGD\)"
    with pytest.raises(CheckpointError, match=words), session(checkpoint=written) as s:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in s.epochs(3):
            optimizer.step()


def test_a_loop_without_an_optimizer_gets_the_way_to_the_weights(written: Path) -> None:
    words = r"this loop has none\. Call s\.load after they are made\. To get only the weights"
    saved = folder.found(written)[-1]
    with session() as s:
        model = nn.Linear(2, 1)
        with pytest.raises(CheckpointError, match=words):
            s.load(saved)
        model.load_state_dict(load_file(saved / "model.safetensors"))


def test_keep_and_monitor(tmp_path: Path) -> None:
    with session("log", checkpoint=tmp_path / "last", keep=2) as s:
        train(s, epochs=5)
    assert [one.name for one in folder.found(tmp_path / "last")] == [
        "step-00000016",
        "step-00000020",
    ]
    with session("log", checkpoint=tmp_path / "best", keep=2, monitor="val_loss") as s:
        train(s, epochs=5)
    assert [one.name for one in folder.found(tmp_path / "best")] == [
        "step-00000008",
        "step-00000012",
        "step-00000020",
    ]
    assert best(tmp_path / "best") == tmp_path / "best" / "step-00000008"


def test_never_resume(written: Path) -> None:
    with (
        pytest.raises(UsageError, match=r"resume='never', but .* has checkpoints"),
        session(checkpoint=written, resume="never"),
    ):
        pass


def test_one_checkpoint_as_the_folder(written: Path) -> None:
    one = written / "step-00000004"
    words = f"is one checkpoint.* pass resume='{one}' .* checkpoint='{written}' or another"
    with pytest.raises(UsageError, match=words):
        session(checkpoint=one)
    assert not list(one.glob("step-*"))


def test_a_file_of_another_library(tmp_path: Path) -> None:
    file = tmp_path / "last.ckpt"
    file.write_bytes(b"PK")
    with pytest.raises(UsageError, match=r"last.ckpt' is a file: pass a folder .* torch.load$"):
        session(checkpoint=file)
    with session(checkpoint=tmp_path / "new") as s:
        train(s, epochs=1)
        with pytest.raises(
            CheckpointError, match=r"it is a file\. Read .* by torch\.load, and"
        ) as one:
            s.load(file)
        assert "damaged" not in str(one.value)
        with pytest.raises(CheckpointError, match=r"absent is not .*: there is no such folder\."):
            s.load(tmp_path / "absent")


@pytest.mark.parametrize("in_background", [False, True])
def test_a_disk_that_is_full_leaves_the_old_ones(written: Path, in_background: bool) -> None:
    before, limits = torch_state(), resource.getrlimit(resource.RLIMIT_FSIZE)
    words = "step-00000012 could not be written: File too large"
    with (
        pytest.raises(CheckpointError, match=words),
        session("log", checkpoint=written, async_save=in_background) as s,
    ):
        resource.setrlimit(resource.RLIMIT_FSIZE, (700, limits[1]))  # no file grows further
        try:
            train(s, epochs=4)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(os.listdir(written)) == ["step-00000004", "step-00000008"]
    assert_torch_unchanged(before)
    assert folder.verify(written / "step-00000008")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"keep": 0}, "at least the last"),
        ({"every_n_steps": 0}, "more than 0"),
        ({"every_minutes": "1"}, "a number of minutes"),
        ({"mode": "best"}, "'min' or 'max'"),
        ({"resume": "some/folder"}, "not a checkpoint"),
        ({"time_limit": 3}, "a timedelta, or a string"),
        ({"time_limit": "0:00"}, "more than 0 seconds"),
        ({"async_save": "yes"}, "True or False"),
        ({"checkpoint": 3}, "a folder"),
        (
            {"checkpoint": ""},
            "checkpoint='' is empty: it must be a folder",
        ),
    ],
)
def test_bad_input(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        session(**options)
