"""A store that is a folder (``file://``), in which others have put what torchbus does not write."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from torchbus import session

from torchbus_checkpoint import locks
from torchbus_checkpoint.disk.folder import MANIFEST, MAX_JSON_BYTES
from torchbus_checkpoint.errors import CheckpointError
from torchbus_checkpoint.remote import store as names
from torchbus_checkpoint.remote.store import Store

from .store_runs import train


def link(place: Path) -> None:
    place.symlink_to("/dev/zero")


def long(place: Path) -> None:
    with place.open("wb") as file:
        file.truncate(MAX_JSON_BYTES + 1)


ODD = [
    pytest.param(os.mkfifo, "not a regular file", id="pipe"),
    pytest.param(link, "a link in its place", id="link"),
    pytest.param(long, "it is longer than", id="long"),
]
Put = Callable[[Path], None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "store"
    found.mkdir()
    return found


@pytest.mark.parametrize("put", [os.mkfifo, link, long])
def test_an_odd_lock_file(put: Put, folder: Path) -> None:
    put(folder / locks.NOTE)
    words = f"{locks.NOTE} is a link, a pipe or too long, and no job wrote it: remove it"
    with pytest.raises(CheckpointError, match=words), session(checkpoint=f"file://{folder}"):
        pass


@pytest.mark.parametrize(("put", "words"), ODD)
def test_an_odd_manifest(put: Put, words: str, folder: Path) -> None:
    """It is passed over, and the checkpoints of this run are sent all the same."""
    for step in (2, 9):
        (folder / f"step-0000000{step}").mkdir()
        put(folder / f"step-0000000{step}" / MANIFEST)
    begun: list[int] = []
    with (
        pytest.warns(UserWarning, match=f"step-0000000[29] is skipped: .*{words}"),
        session(checkpoint=f"file://{folder}", every_n_steps=100) as s,
    ):
        train(s, 2, begun.append)
    assert begun == [0, 1]
    assert "step-00000002.2" in [one.name for one in names.there(Store(f"file://{folder}"))]


def test_a_file_is_no_longer_than_its_manifest_says(folder: Path, tmp_path: Path) -> None:
    (folder / "long").write_bytes(bytes(11))
    store = Store(f"file://{folder}")
    with pytest.raises(CheckpointError, match="long: .*it is longer than 10 bytes"):
        store.get("long", tmp_path / "copy", 10)
    store.get("long", tmp_path / "whole", 11)
    assert (tmp_path / "whole").read_bytes() == bytes(11)


def test_nothing_is_written_through_a_link(folder: Path, tmp_path: Path) -> None:
    mine, mine_too = tmp_path / "mine", tmp_path / "mine_too"
    mine.write_text("mine")
    mine_too.mkdir()
    (folder / "step-00000001").mkdir()
    (folder / "step-00000001/training.safetensors").symlink_to(mine)
    (folder / "step-00000002").symlink_to(mine_too)
    with session(checkpoint=f"file://{folder}", every_n_steps=1) as s:
        train(s, 2)
    assert mine.read_text() == "mine" and not list(mine_too.iterdir())
