"""Checkpoints that somebody made up: the command says so in one line."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchbus_checkpoint.disk import folder
from torchbus_cli.main import main

from ..test_formats import FORMATS
from .resealed import reseal

Said = tuple[int, str, str]
Call = Callable[..., Said]


def refit(checkpoint: Path, name: str, data: bytes) -> None:
    """Another file, with a manifest that fits."""
    (checkpoint / name).write_bytes(data)
    entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    reseal(checkpoint, lambda content: content["files"].update({name: entry}))


def deep(one: Path) -> None:
    (one / "manifest.json").write_text("[" * 200_000)


def pipe(one: Path) -> None:
    (one / "model.safetensors").unlink()
    os.mkfifo(one / "model.safetensors")


def pipe_as_manifest(one: Path) -> None:
    (one / "manifest.json").unlink()
    os.mkfifo(one / "manifest.json")


def device(one: Path) -> None:
    (one / "model.safetensors").unlink()
    (one / "model.safetensors").symlink_to("/dev/zero")
    reseal(one, lambda content: content["files"]["model.safetensors"].update(bytes=0))


def huge_manifest(one: Path) -> None:
    with (one / "manifest.json").open("ab") as file:
        file.truncate(1 << 40)


def out_of_the_folder(one: Path) -> None:
    reseal(one, lambda content: content["files"].update({"../../x": {"bytes": 1, "sha256": ""}}))


def surrogates(one: Path) -> None:
    reseal(
        one,
        lambda content: content["files"].update(
            {"\ud800\x1b[2J": content["files"]["model.safetensors"]}
        ),
    )


def infinite(one: Path) -> None:
    text = (one / "manifest.json").read_text()
    (one / "manifest.json").write_text(text.replace('"step": 2', '"step": 1e999'))


def infinite_and_sealed(one: Path) -> None:
    reseal(one, lambda content: content.update(step=float("inf"), metric=float("nan")))


def no_entries(one: Path) -> None:
    reseal(one, lambda content: content.update(files=None))


def other_entries(one: Path) -> None:
    reseal(one, lambda content: content["files"].update({"model.safetensors": []}))


def no_training(one: Path) -> None:
    reseal(one, lambda content: content["files"].pop("training.safetensors"))


def no_rank(one: Path) -> None:
    reseal(one, lambda content: content["files"].pop("rank-0.safetensors"))


def missing(one: Path) -> None:
    (one / "training.safetensors").unlink()


def half(one: Path) -> None:
    refit(one, "training.safetensors", (one / "training.safetensors").read_bytes()[:500])


def no_dict(one: Path) -> None:
    folder.write_file(one, "other.pt", [1])
    refit(one, "training.safetensors", (one / "other.pt").read_bytes())


def code(one: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(one.parent / "run"),)

    torch.save({"weights": ["model.safetensors"], "trained": Evil()}, one / "other.pt")
    refit(one, "training.safetensors", (one / "other.pt").read_bytes())


def folder_as_file(one: Path) -> None:
    (one / "model.safetensors").unlink()
    (one / "model.safetensors").mkdir()


def strange_number(one: Path) -> None:
    reseal(one, lambda content: content.update(version="2"))


MADE_UP = [
    deep,
    pipe,
    pipe_as_manifest,
    device,
    huge_manifest,
    out_of_the_folder,
    surrogates,
    infinite,
    infinite_and_sealed,
    no_entries,
    other_entries,
    no_training,
    no_rank,
    missing,
    half,
    no_dict,
    code,
    folder_as_file,
    strange_number,
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make_up", MADE_UP, ids=lambda make_up: make_up.__name__)
def test_one_line_and_no_traceback(
    one: Path, tmp_path: Path, call: Call, make_up: Callable[[Path], None]
) -> None:
    make_up(one)
    for action in ("show", "verify", "export"):
        status, out, told = call(
            action, one, *(["-o", tmp_path / "out"] if action == "export" else [])
        )
        said = (out + told).removeprefix("torchbus checkpoint: ")
        assert (
            status == 1
            and said.count("\n") == 1
            and "step-00000002" in said
            and said[:-1].isprintable()
        ), (action, said)
    assert not (one.parent / "run").exists() and not (tmp_path / "out").exists()
    assert call("show", one.parent)[1].count("step-00000001") == 1


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_fuzzed_files_whose_checksums_fit(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
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
        assert main(
            [
                "checkpoint",
                action,
                str(copy),
                *(["-o", str(copy.parent / "out")] if action == "export" else []),
            ]
        ) in (0, 1)
