"""``torchbus checkpoint show``, ``verify`` and ``export``: over checkpoints of every format, and over what somebody has made up."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torchbus import session
from torchbus._cli import main

from torchbus_checkpoint.disk import folder, saving

from .test_formats import FORMATS, KEPT

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


def reseal(checkpoint: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """A manifest that somebody has changed, and whose checksum fits."""
    path = checkpoint / "manifest.json"
    content = json.loads(path.read_text())
    del content["sha256"]
    change(content)
    path.write_text(json.dumps(content | {"sha256": folder._digest(content)}))


def refit(checkpoint: Path, name: str, data: bytes) -> None:
    """Another file, with a manifest that fits."""
    (checkpoint / name).write_bytes(data)
    reseal(checkpoint, lambda content: content["files"].update({name: folder.entry(checkpoint / name)}))


# What they say -----------------------------------------------------------------------------------------------------


def test_show_of_one(one: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    status, out, _ = call("show", one)
    assert status == 0 and out.splitlines()[:3] == [str(one), "  step        2, in epoch 0", "  ranks       1"]
    for line in (
        f"written by  torchbus {torch_bus()}, torch {torch.__version__}, format 2",
        "models      net (Sequential) with 4 tensors of 13 numbers",
        "optimizers  optimizer (Adam) with 12 tensors of 30 numbers",
    ):
        assert line in out


def torch_bus() -> str:
    import torchbus

    return torchbus.__version__


def test_show_of_a_folder_names_the_bad_ones_and_shows_the_others(written: Path, call: Call) -> None:
    (written / "step-00000003").mkdir()
    (written / "step-00000001" / "manifest.json").write_text("null")
    status, out, _ = call("show", written)
    head, row, *_, damaged, none = out.splitlines()
    assert status == 1 and head.split()[:2] == ["CHECKPOINT", "STEP"] and row.split()[:2] == ["step-00000002", "2"]
    assert "step-00000001" in damaged and f"{written / 'step-00000003'} is no checkpoint: there is no manifest.json" in none


def test_show_as_json(written: Path, call: Call) -> None:
    status, out, _ = call("show", written, "--json")
    first, second = json.loads(out)
    assert status == 0 and (first["step"], second["step"], second["format"]) == (1, 2, 2)
    assert second["models"] == ["net (Sequential) with 4 tensors of 13 numbers"]


def test_verify(written: Path, call: Call) -> None:
    assert call("verify", written)[0] == 0
    path = written / "step-00000001" / "model.pt"
    path.write_bytes(path.read_bytes()[:-1])
    status, out, _ = call("verify", written)
    assert status == 1 and f"{path.parent} is damaged: model.pt has" in out.splitlines()[0]
    assert out.splitlines()[1].startswith(f"{written / 'step-00000002'}: whole, 3 files with ")


def test_export(one: Path, tmp_path: Path, call: Call) -> None:
    out = tmp_path / "out"
    assert call("export", one.parent, "-o", out, "--optimizers")[0] == 0
    assert sorted(os.listdir(out)) == ["model.pt", "optimizer.pt"]
    weights = torch.load(out / "model.pt", weights_only=True)
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    net.load_state_dict(weights)
    torch.optim.Adam(net.parameters()).load_state_dict(torch.load(out / "optimizer.pt", weights_only=True))
    assert all(map(torch.equal, weights.values(), torch.load(one / "model.pt", weights_only=True).values()))
    status, _, told = call("export", one, "-o", out)
    assert status == 2 and told == f"torchbus checkpoint: {out / 'model.pt'} is there already: remove it, or name another folder with --output\n"
    blocked = tmp_path / "file"
    blocked.touch()
    assert "can't be written: Not a directory" in call("export", one, "-o", blocked / "out")[2]


def test_export_to_safetensors(one: Path, tmp_path: Path, call: Call) -> None:
    load_file = pytest.importorskip("safetensors.torch").load_file
    assert call("export", one, "-o", tmp_path, "--format", "safetensors")[0] == 0
    found, there = load_file(tmp_path / "model.safetensors"), torch.load(one / "model.pt", weights_only=True)
    assert set(found) == set(there) and all(torch.equal(found[key], there[key]) for key in there)


def test_safetensors_that_is_not_installed(one: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    status, _, told = call("export", one, "--format", "safetensors")
    assert status == 2 and "--format safetensors needs a package that is not installed: pip install safetensors" in told


@pytest.mark.parametrize("number", KEPT)
@pytest.mark.parametrize("kind", ["whole", "window", "parts"])
def test_every_format(kind: str, number: int, tmp_path: Path, call: Call) -> None:
    path = FORMATS / str(number) / kind
    if kind == "parts" and not saving.HAS_SAFE_PARTS:
        pytest.skip("needs torch 2.6")
    status, out, _ = call("show", path)
    assert status == 0 and f"format {number}" in out and ("torchbus " in out) is (number > 1)
    assert call("verify", path)[0] == call("export", path, "-o", tmp_path / "out")[0] == 0
    names = ["model-average.pt", "model-decoder.pt", "model-encoder.pt"] if kind == "whole" else ["model.pt"]
    assert sorted(os.listdir(tmp_path / "out")) == names
    if kind == "parts":
        assert [len(one) for one in torch.load(tmp_path / "out" / "model.pt", weights_only=True).values()] == [4, 4, 3, 3]


def test_a_newer_format_is_refused_with_the_version_to_install(one: Path, call: Call) -> None:
    reseal(one, lambda content: content.update(version=7, written_by={"torchbus": "3.1.4"}))
    for action in ("show", "verify"):
        status, out, _ = call(action, one)
        assert status == 1 and "has format 7, written by torchbus 3.1.4; this is torchbus" in out
        assert out.endswith("which reads formats 1 to 2: pip install 'torchbus-checkpoint>=3.1.4'\n") and out.count("\n") == 1
    reseal(one, lambda content: content.update(written_by=None))
    assert call("export", one)[2].endswith("install the version that wrote it\n")


@pytest.mark.parametrize(("words", "told"), [
    (["show", "nowhere"], "there is no folder nowhere"),
    (["verify", "."], "there is no checkpoint in .: a checkpoint is a folder with a manifest.json"),
    (["export", "named"], "named has checkpoints that a script has named itself: say which of mine"),
])  # fmt: skip
def test_bad_paths(one: Path, call: Call, monkeypatch: pytest.MonkeyPatch, words: list[str], told: str) -> None:
    shutil.copytree(one, one.parent / "named" / "mine")
    (one.parent / "empty").mkdir()
    monkeypatch.chdir(one.parent if words[1] == "named" else one.parent / "empty")
    status, _, said = call(*words)
    assert (status, said) == (2, f"torchbus checkpoint: {told}\n")


# What somebody has made up -----------------------------------------------------------------------------------------


def deep(one: Path) -> None:
    (one / "manifest.json").write_text("[" * 200_000)


def pipe(one: Path) -> None:
    (one / "model.pt").unlink()
    os.mkfifo(one / "model.pt")


def pipe_as_manifest(one: Path) -> None:
    (one / "manifest.json").unlink()
    os.mkfifo(one / "manifest.json")


def device(one: Path) -> None:
    (one / "model.pt").unlink()
    (one / "model.pt").symlink_to("/dev/zero")
    reseal(one, lambda content: content["files"]["model.pt"].update(bytes=0))


def huge_manifest(one: Path) -> None:
    with (one / "manifest.json").open("ab") as file:
        file.truncate(1 << 40)


def out_of_the_folder(one: Path) -> None:
    reseal(one, lambda content: content["files"].update({"../../x": {"bytes": 1, "sha256": ""}}))


def surrogates(one: Path) -> None:
    reseal(one, lambda content: content["files"].update({"\ud800\x1b[2J": content["files"]["model.pt"]}))


def infinite(one: Path) -> None:
    text = (one / "manifest.json").read_text()
    (one / "manifest.json").write_text(text.replace('"step": 2', '"step": 1e999'))


def infinite_and_sealed(one: Path) -> None:
    reseal(one, lambda content: content.update(step=float("inf"), metric=float("nan")))


def no_entries(one: Path) -> None:
    reseal(one, lambda content: content.update(files=None))


def other_entries(one: Path) -> None:
    reseal(one, lambda content: content["files"].update({"model.pt": []}))


def no_training(one: Path) -> None:
    reseal(one, lambda content: content["files"].pop("training.pt"))


def no_rank(one: Path) -> None:
    reseal(one, lambda content: content["files"].pop("rank-0.pt"))


def missing(one: Path) -> None:
    (one / "training.pt").unlink()


def half(one: Path) -> None:
    refit(one, "training.pt", (one / "training.pt").read_bytes()[:500])


def no_dict(one: Path) -> None:
    torch.save([1], one / "other.pt")
    refit(one, "training.pt", (one / "other.pt").read_bytes())


def code(one: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(one.parent / "run"),)

    torch.save({"weights": ["model.pt"], "trained": Evil()}, one / "other.pt")
    refit(one, "training.pt", (one / "other.pt").read_bytes())


def folder_as_file(one: Path) -> None:
    (one / "model.pt").unlink()
    (one / "model.pt").mkdir()


def strange_number(one: Path) -> None:
    reseal(one, lambda content: content.update(version="2"))


MADE_UP = [
    deep, pipe, pipe_as_manifest, device, huge_manifest, out_of_the_folder, surrogates, infinite, infinite_and_sealed, no_entries,
    other_entries, no_training, no_rank, missing, half, no_dict, code, folder_as_file, strange_number,
]  # fmt: skip


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make_up", MADE_UP, ids=lambda make_up: make_up.__name__)
def test_one_line_and_no_traceback(one: Path, tmp_path: Path, call: Call, make_up: Callable[[Path], None]) -> None:
    make_up(one)
    for action in ("show", "verify", "export"):
        status, out, told = call(action, one, *(["-o", tmp_path / "out"] if action == "export" else []))
        said = (out + told).removeprefix("torchbus checkpoint: ")
        assert status == 1 and said.count("\n") == 1 and "step-00000002" in said and said[:-1].isprintable(), (action, said)
    assert not (one.parent / "run").exists() and not (tmp_path / "out").exists()
    assert call("show", one.parent)[1].count("step-00000001") == 1


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_fuzzed_files_whose_checksums_fit(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    copy = tmp_path_factory.mktemp("fuzzed") / "step-00000008"
    shutil.copytree(FORMATS / "1" / data.draw(st.sampled_from(["whole", "parts"])), copy)
    name = data.draw(st.sampled_from(sorted(os.listdir(copy))))
    content = bytearray((copy / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 20))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    if name == "manifest.json":
        (copy / name).write_bytes(content)
    else:
        refit(copy, name, bytes(content))
    for action in ("show", "verify", "export"):
        assert main(["checkpoint", action, str(copy), *(["-o", str(copy.parent / "out")] if action == "export" else [])]) in (0, 1)
