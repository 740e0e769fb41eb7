"""``torchbus checkpoint show``, ``verify`` and ``export``: over checkpoints of every format, and
over what somebody has made up.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from torchbus_checkpoint.disk import folder

from ..test_formats import FORMATS, KEPT
from .resealed import reseal

Said = tuple[int, str, str]
Call = Callable[..., Said]


def test_show_of_one(one: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    status, out, _ = call("show", one)
    assert status == 0 and out.splitlines()[:3] == [
        str(one),
        "  step        2, in epoch 0",
        "  ranks       1",
    ]
    for line in (
        f"written by  torchbus {torch_bus()}, torch {torch.__version__}, format 3",
        "models      net (Sequential) with 4 tensors of 13 numbers",
        "optimizers  optimizer (Adam) with 12 tensors of 30 numbers",
    ):
        assert line in out


def torch_bus() -> str:
    import torchbus

    return torchbus.__version__


def test_show_of_a_folder_names_the_bad_ones_and_shows_the_others(
    written: Path, call: Call
) -> None:
    (written / "step-00000003").mkdir()
    (written / "step-00000001" / "manifest.json").write_text("null")
    status, out, _ = call("show", written)
    head, row, *_, damaged, none = out.splitlines()
    assert (
        status == 1
        and head.split()[:2] == ["CHECKPOINT", "STEP"]
        and row.split()[:2] == ["step-00000002", "2"]
    )
    assert (
        "step-00000001" in damaged
        and f"{written / 'step-00000003'} is not a checkpoint: it has no manifest.json" in none
    )


def test_show_as_json(written: Path, call: Call) -> None:
    status, out, _ = call("show", written, "--json")
    first, second = json.loads(out)
    assert status == 0 and (first["step"], second["step"], second["format"]) == (1, 2, 3)
    assert second["models"] == ["net (Sequential) with 4 tensors of 13 numbers"]


def test_verify(written: Path, call: Call) -> None:
    assert call("verify", written)[0] == 0
    path = written / "step-00000001" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    status, out, _ = call("verify", written)
    assert status == 1 and f"{path.parent} is damaged: model.safetensors has" in out.splitlines()[0]
    assert out.splitlines()[1].startswith(f"{written / 'step-00000002'}: whole, 3 files with ")


def test_export(one: Path, tmp_path: Path, call: Call) -> None:
    out = tmp_path / "out"
    assert call("export", one.parent, "-o", out, "--optimizers")[0] == 0
    assert sorted(os.listdir(out)) == ["model.pt", "optimizer.pt"]
    weights = torch.load(out / "model.pt", weights_only=True)
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    net.load_state_dict(weights)
    torch.optim.Adam(net.parameters()).load_state_dict(
        torch.load(out / "optimizer.pt", weights_only=True)
    )
    assert all(map(torch.equal, weights.values(), folder.read_file(one, "model").values()))
    status, _, told = call("export", one, "-o", out)
    assert (
        status == 2
        and told
        == f"torchbus checkpoint: {out / 'model.pt'} exists already: remove it, or name another folder with --output\n"
    )
    blocked = tmp_path / "file"
    blocked.touch()
    assert "can't be written: Not a directory" in call("export", one, "-o", blocked / "out")[2]


def test_export_to_safetensors(one: Path, tmp_path: Path, call: Call) -> None:
    assert call("export", one, "-o", tmp_path, "--format", "safetensors")[0] == 0
    found, there = (
        load_file(tmp_path / "model.safetensors"),
        folder.read_file(one, "model"),
    )
    assert set(found) == set(there) and all(torch.equal(found[key], there[key]) for key in there)


@pytest.mark.parametrize("number", KEPT)
@pytest.mark.parametrize("kind", ["whole", "window", "parts"])
def test_every_format(kind: str, number: int, tmp_path: Path, call: Call) -> None:
    path = FORMATS / str(number) / kind
    status, out, _ = call("show", path)
    assert status == 0 and f"format {number}" in out and ("torchbus " in out) is (number > 1)
    assert call("verify", path)[0] == call("export", path, "-o", tmp_path / "out")[0] == 0
    names = (
        ["model-average.pt", "model-decoder.pt", "model-encoder.pt"]
        if kind == "whole"
        else ["model.pt"]
    )
    assert sorted(os.listdir(tmp_path / "out")) == names
    if kind == "parts":
        assert [
            len(one)
            for one in torch.load(tmp_path / "out" / "model.pt", weights_only=True).values()
        ] == [4, 4, 3, 3]


def test_a_newer_format_is_refused_with_the_version_to_install(one: Path, call: Call) -> None:
    reseal(one, lambda content: content.update(version=7, written_by={"torchbus": "3.1.4"}))
    for action in ("show", "verify"):
        status, out, _ = call(action, one)
        assert status == 1 and "has format 7, written by torchbus 3.1.4; this is torchbus" in out
        assert (
            out.endswith("which reads formats 1 to 3: pip install 'torchbus-checkpoint>=3.1.4'\n")
            and out.count("\n") == 1
        )
    reseal(one, lambda content: content.update(written_by=None))
    assert call("export", one)[2].endswith("install the version that wrote it\n")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["show", "nowhere"],
            "there is no folder nowhere. Name a checkpoint, or a folder of checkpoints",
        ),
        (
            ["verify", "."],
            "there is no checkpoint in .: a checkpoint is a folder with a manifest.json",
        ),
        (
            ["export", "named"],
            "the script named the checkpoints in named itself: pass the path of one of mine",
        ),
    ],
)
def test_bad_paths(
    one: Path, call: Call, monkeypatch: pytest.MonkeyPatch, words: list[str], told: str
) -> None:
    shutil.copytree(one, one.parent / "named" / "mine")
    (one.parent / "empty").mkdir()
    monkeypatch.chdir(one.parent if words[1] == "named" else one.parent / "empty")
    status, _, said = call(*words)
    assert (status, said) == (2, f"torchbus checkpoint: {told}\n")
