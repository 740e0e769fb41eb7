"""Checkpoints that are damaged, half written, of another version, or of another model."""

from __future__ import annotations

import json
import os
import pickle
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session
from torchbus.errors import UsageError
from torchbus.testing import assert_torch_unchanged, torch_state

from torchbus_checkpoint import Checkpoint, CheckpointError, best, latest
from torchbus_checkpoint.disk import folder, leftovers
from torchbus_checkpoint.errors import NewerFormat


def train(s: Any, model: nn.Module | None = None, epochs: int = 2) -> nn.Module:
    model = model or nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(8, 2)), batch_size=2, shuffle=True)
    for epoch in s.epochs(epochs):
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        s.log("val_loss", [3.0, 1.0, 2.0, 4.0, 5.0][epoch])
    return model


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A folder with two checkpoints."""
    with session("log", checkpoint=tmp_path / "all", every_n_epochs=1) as s:
        train(s)
    assert [one.name for one in folder.found(tmp_path / "all")] == ["step-00000004", "step-00000008"]
    return tmp_path / "all"


def test_what_is_in_one(written: Path) -> None:
    last = latest(written)
    assert last is not None and sorted(os.listdir(last)) == ["manifest.json", "model.pt", "rank-0.pt", "training.pt"]
    weights = torch.load(last / "model.pt", weights_only=True)
    model = nn.Linear(2, 1)
    model.load_state_dict(weights)
    assert type(weights) is dict and list(weights) == ["weight", "bias"]
    for name in ("training.pt", "rank-0.pt"):
        torch.load(last / name, weights_only=True)


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
def test_safetensors_beside_the_plain_file(tmp_path: Path, in_background: bool) -> None:
    load_file = pytest.importorskip("safetensors.torch").load_file
    with session("log", checkpoint=tmp_path, safetensors=True, async_save=in_background) as s:
        model = train(s, Tied())
    last = latest(tmp_path)
    assert last is not None and {"model.pt", "model.safetensors"} <= set(folder.verify(last)["files"])
    found = load_file(last / "model.safetensors")
    assert set(found) == {"a.weight", "a.bias", "b.weight", "b.bias"}
    assert all(torch.equal(found[key], value) for key, value in model.state_dict().items() if isinstance(value, torch.Tensor))


def test_safetensors_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install safetensors"):
        Checkpoint(safetensors=True)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_flipped_bits_and_cut_files_are_refused_by_name(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
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
        folder.read_file(copy, victim.name if victim.name.endswith(".pt") else "model.pt")


_written: list[Path] = []


def _shared_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not _written:
        parent = tmp_path_factory.mktemp("shared")
        with session("log", checkpoint=parent) as s:
            train(s, epochs=1)
        _written.append(folder.found(parent)[0])
    return _written[0]


@pytest.mark.parametrize("name", ["model.pt", "training.pt", "rank-0.pt", "manifest.json"])
def test_the_one_before_a_damaged_one_is_used(written: Path, name: str) -> None:
    (written / "step-00000008" / name).write_bytes(b"half")
    with pytest.warns(UserWarning, match=r"step-00000008 is damaged.*step-00000004"):
        assert latest(written) == written / "step-00000004"


def test_all_damaged(written: Path) -> None:
    for one in folder.found(written):
        (one / "model.pt").unlink()
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* is whole: .*model.pt is missing"), session(checkpoint=written):
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
    words = "has format 99, written by torchbus .*, which reads formats 1 to 2: pip install 'torchbus-checkpoint>="
    with pytest.raises(CheckpointError, match=words):
        folder.verify(path.parent)
    with pytest.raises(NewerFormat, match="step-00000008"):  # an older one beside it is not gone on from instead
        latest(written)


def test_no_code_is_run_from_a_file(written: Path, tmp_path: Path) -> None:
    """Even where the checksums were made to fit."""

    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "run"),)

    one = written / "step-00000008"
    (one / "training.pt").unlink()
    torch.save(Evil(), one / "training.pt")
    content = json.loads((one / "manifest.json").read_text())
    del content["sha256"]
    data = (one / "training.pt").read_bytes()
    content["files"]["training.pt"] = {"bytes": len(data), "sha256": __import__("hashlib").sha256(data).hexdigest()}
    (one / "manifest.json").write_text(json.dumps(content | {"sha256": folder._digest(content)}))
    with pytest.raises(CheckpointError, match="what a checkpoint does not hold"):
        folder.read_file(one, "training.pt")
    assert not (tmp_path / "run").exists() and pickle.dumps(Evil())


@pytest.mark.parametrize(("model", "words"), [
    (nn.Linear(3, 1), r"weight has shape \(1, 2\), and in model of this loop \(1, 3\)"),
    (nn.Linear(2, 1, bias=False), "had other layers"),
    (nn.Sequential(nn.Linear(2, 1)), r"\(Linear\); this loop has model \(Sequential\)"),
])  # fmt: skip
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


def test_keep_and_monitor(tmp_path: Path) -> None:
    with session("log", checkpoint=tmp_path / "last", keep=2) as s:
        train(s, epochs=5)
    assert [one.name for one in folder.found(tmp_path / "last")] == ["step-00000016", "step-00000020"]
    with session("log", checkpoint=tmp_path / "best", keep=2, monitor="val_loss") as s:
        train(s, epochs=5)
    assert [one.name for one in folder.found(tmp_path / "best")] == ["step-00000008", "step-00000012", "step-00000020"]
    assert best(tmp_path / "best") == tmp_path / "best" / "step-00000008"


def test_never_resume(written: Path) -> None:
    with pytest.raises(UsageError, match=r"resume='never', but .* has checkpoints"), session(checkpoint=written, resume="never"):
        pass


@pytest.mark.parametrize("in_background", [False, True])
def test_a_disk_that_is_full_leaves_the_old_ones(written: Path, in_background: bool) -> None:
    before, limits = torch_state(), resource.getrlimit(resource.RLIMIT_FSIZE)
    words = "step-00000012 could not be written: File too large"
    with pytest.raises(CheckpointError, match=words), session("log", checkpoint=written, async_save=in_background) as s:
        resource.setrlimit(resource.RLIMIT_FSIZE, (700, limits[1]))  # no file grows further
        try:
            train(s, epochs=4)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(os.listdir(written)) == ["step-00000004", "step-00000008"]
    assert_torch_unchanged(before)
    assert folder.verify(written / "step-00000008")


@pytest.mark.parametrize(("options", "words"), [
    ({"keep": 0}, "at least the last"),
    ({"every_n_steps": 0}, "more than 0"),
    ({"every_minutes": "1"}, "a number of minutes"),
    ({"mode": "best"}, "'min' or 'max'"),
    ({"resume": "some/folder"}, "no checkpoint"),
    ({"time_limit": 3}, "a timedelta, or a string"),
    ({"time_limit": "0:00"}, "more than nothing"),
    ({"async_save": "yes"}, "True or False"),
    ({"safetensors": 1}, "True or False"),
    ({"checkpoint": 3}, "a folder"),
])  # fmt: skip
def test_bad_input(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        session(**options)
