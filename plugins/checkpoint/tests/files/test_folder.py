"""Checkpoints that are damaged, half written, of another version, or of another model."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn
from torchbus import session

from torchbus_checkpoint.disk import folder
from torchbus_checkpoint.disk import formats as leftovers
from torchbus_checkpoint.disk.choice import latest
from torchbus_checkpoint.errors import CheckpointError, NewerFormat

from .small_run import train


def test_what_is_in_one(written: Path) -> None:
    last = latest(written)
    assert last is not None and sorted(os.listdir(last)) == [
        "manifest.json",
        "model.safetensors",
        "rank-0.safetensors",
        "training.safetensors",
    ]
    weights = folder.read_file(last, "model")
    model = nn.Linear(2, 1)
    model.load_state_dict(weights)
    assert type(weights) is dict and list(weights) == ["weight", "bias"]
    assert set(load_file(last / "model.safetensors")) == {"weight", "bias"}


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(2, 2)
        self.b = self.a

    def get_extra_state(self) -> Any:
        return {"note": "not a tensor"}

    def set_extra_state(self, state: Any) -> None:
        assert state["note"] == "not a tensor"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x))


@pytest.mark.parametrize("in_background", [False, True])
def test_tied_weights_are_in_the_file_once(tmp_path: Path, in_background: bool) -> None:
    with session("log", checkpoint=tmp_path, async_save=in_background) as s:
        model = train(s, Tied())
    last = latest(tmp_path)
    assert last is not None
    assert set(load_file(last / "model.safetensors")) == {"a.weight", "a.bias"}
    weights = folder.read_file(last, "model")
    assert list(weights) == list(model.state_dict())
    assert weights["b.weight"] is weights["a.weight"]
    assert weights["a.weight"].equal(model.a.weight)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_flipped_bits_and_cut_files_are_refused_by_name(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    original = _shared_checkpoint(tmp_path_factory)
    copy = tmp_path_factory.mktemp("fuzzed") / "step-00000004"
    shutil.copytree(original, copy)
    victim = copy / data.draw(st.sampled_from(sorted(os.listdir(copy))))
    content = bytearray(victim.read_bytes())
    if data.draw(st.booleans(), "cut"):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    victim.write_bytes(content)
    with pytest.raises(CheckpointError, match="step-00000004"):
        folder.verify(copy)
    with pytest.raises(CheckpointError, match="step-00000004"):
        folder.read_file(copy, "model" if victim.stem == "manifest" else victim.stem)


_written: list[Path] = []


def _shared_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not _written:
        parent = tmp_path_factory.mktemp("shared")
        with session("log", checkpoint=parent) as s:
            train(s, epochs=1)
        _written.append(folder.found(parent)[0])
    return _written[0]


@pytest.mark.parametrize(
    "name", ["model.safetensors", "training.safetensors", "rank-0.safetensors", "manifest.json"]
)
def test_the_one_before_a_damaged_one_is_used(written: Path, name: str) -> None:
    (written / "step-00000008" / name).write_bytes(b"half")
    with pytest.warns(UserWarning, match=r"step-00000008 is damaged.*step-00000004"):
        assert latest(written) == written / "step-00000004"


def test_a_damaged_one_that_was_named_says_how_to_find_another(written: Path) -> None:
    (written / "step-00000008" / "model.safetensors").write_bytes(b"half")
    words = rf"step-00000008 is damaged: .* `torchbus checkpoint verify {written}` says which ones"
    named = written / "step-00000008"
    with pytest.raises(CheckpointError, match=words), session(checkpoint=written, resume=named):
        pass
    with session("checkpoint") as s, pytest.raises(CheckpointError, match=words):
        s.load(named)


def test_all_damaged(written: Path) -> None:
    for one in folder.found(written):
        (one / "model.safetensors").unlink()
    with (
        pytest.raises(
            CheckpointError, match=r"no checkpoint in .* is whole: .*model.safetensors is missing"
        ),
        session(checkpoint=written),
    ):
        pass


def test_half_written_ones_are_not_seen_and_swept(written: Path) -> None:
    shutil.copytree(written / "step-00000008", written / ".step-00000012.3.partial")
    os.replace(written / "step-00000004", written / ".step-00000004.previous")
    assert [one.name for one in folder.found(written)] == ["step-00000008"]
    leftovers.sweep(written)
    assert sorted(os.listdir(written)) == ["step-00000004", "step-00000008"]


def test_another_version(written: Path) -> None:
    path = written / "step-00000008" / "manifest.json"
    content = json.loads(path.read_text())
    del content["sha256"]
    content["version"] = 99
    path.write_text(json.dumps(content | {"sha256": folder._digest(content)}))
    words = "has format 99, written by torchbus .*, which reads formats 1 to 3: pip install 'torchbus-checkpoint>="
    with pytest.raises(CheckpointError, match=words):
        folder.verify(path.parent)
    # an older one beside it is not gone on from instead
    with pytest.raises(NewerFormat, match="step-00000008"):
        latest(written)


def test_no_code_is_run_from_a_file(written: Path, tmp_path: Path) -> None:
    """Even where the checksums were made to fit."""

    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "run"),)

    one = written / "step-00000008"
    (one / "training.safetensors").unlink()
    torch.save(Evil(), one / "training.safetensors")
    content = json.loads((one / "manifest.json").read_text())
    del content["sha256"]
    data = (one / "training.safetensors").read_bytes()
    content["files"]["training.safetensors"] = {
        "bytes": len(data),
        "sha256": __import__("hashlib").sha256(data).hexdigest(),
    }
    (one / "manifest.json").write_text(json.dumps(content | {"sha256": folder._digest(content)}))
    with pytest.raises(CheckpointError, match="holds content that torchbus did not write"):
        folder.read_file(one, "training")
    assert not (tmp_path / "run").exists() and pickle.dumps(Evil())


@pytest.mark.parametrize("name", [".x.trash", ".step-00000007.1.partial", ".x.sending"])
def test_what_is_no_folder_is_unlinked(name: str, tmp_path: Path) -> None:
    """To open a pipe waits for a writer."""
    os.mkfifo(tmp_path / name)
    code = f"from torchbus_checkpoint.disk import formats; formats.sweep(formats.Path({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=20)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", [".previous", "..previous", "...previous"])
def test_previous_ones_of_no_name_stay(name: str, tmp_path: Path) -> None:
    (tmp_path / "all" / name).mkdir(parents=True)
    leftovers.sweep(tmp_path / "all")
    assert os.listdir(tmp_path / "all") == [name]


def test_an_error_of_a_reader_is_cut(tmp_path: Path) -> None:
    """It may quote what somebody has written."""
    with pytest.raises(CheckpointError) as refused, folder.blamed(tmp_path, "training.pt"):
        raise ValueError("x" * 1_000_000)
    assert len(str(refused.value)) < len(str(tmp_path)) + 400
