"""Leftovers, links, and files that can not be read."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from torchbus import session

from torchbus_checkpoint.disk import folder, formats
from torchbus_checkpoint.disk.choice import latest
from torchbus_checkpoint.errors import CheckpointError

from .short_run import train


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A folder with three checkpoints."""
    with session(checkpoint=tmp_path / "all", every_n_steps=1) as s:
        train(s)
    assert [one.name for one in folder.found(tmp_path / "all")] == [
        "step-00000001",
        "step-00000002",
        "step-00000003",
    ]
    return tmp_path / "all"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k,nr_inodes=14", "none", place], capture_output=True
    ).returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.parametrize("what", ["room", "inodes"])
def test_leftovers_on_a_full_disk_make_room(small_disk: Path, what: str) -> None:
    parent = small_disk / "all"
    left = parent / ".step-00000004.4.partial"
    left.mkdir(parents=True)
    with pytest.raises(OSError, match="No space left"):
        for number in range(100):
            (left / f"{number}").write_bytes(bytes(400_000 if what == "room" else 0))
    with session(checkpoint=parent, every_n_steps=1, keep=1) as s:
        train(s)
    assert os.listdir(parent) == ["step-00000003"]


def test_leftovers_of_save(tmp_path: Path) -> None:
    """Of ``s.save`` in a folder that is nobody's: those of dead processes only."""
    with session() as s:
        train(s)
        s.save(tmp_path / "mine")
        alive, dead, other = (
            tmp_path / name for name in (".mine.8.partial", ".mine.9.partial", ".mine.own")
        )
        for path in (alive, dead, other, tmp_path / ".mine.trash"):
            path.mkdir()
        with formats.claimed(alive) as claimed:
            assert claimed
            s.save(tmp_path / "mine")
            assert sorted(os.listdir(tmp_path)) == [".mine.8.partial", ".mine.own", "mine"]
        os.replace(tmp_path / "mine", tmp_path / ".mine.previous")  # killed between two renames
        s.load(tmp_path / "mine")
    assert sorted(os.listdir(tmp_path)) == [".mine.own", "mine"]


def test_one_that_can_not_be_removed_ends_no_training(tmp_path: Path) -> None:
    words = "step-00000001, which keep=... does not keep, can't be removed: Not a directory"
    with (
        pytest.warns(UserWarning, match=words),
        session(checkpoint=tmp_path, every_n_steps=1, keep=1) as s,
    ):
        (tmp_path / ".step-00000001.trash").touch()
        train(s)
    assert [one.name for one in folder.found(tmp_path)] == ["step-00000001", "step-00000003"]


def test_checkpoints_that_are_links(written: Path, tmp_path: Path) -> None:
    """Moved to another disk: gone on from; one that ``keep`` does not keep is unlinked, and what it
    led to stays.
    """
    for name in ("step-00000002", "step-00000003"):
        (written / name).rename(tmp_path / name)
        (written / name).symlink_to(tmp_path / name)
    with warnings.catch_warnings(), session(checkpoint=written, every_n_steps=1, keep=1) as s:
        warnings.simplefilter("error")
        train(s, 6)
    assert [one.name for one in folder.found(written)] == ["step-00000006"] and not list(
        written.glob(".*trash")
    )
    assert len(folder.found(tmp_path)) == 2


def in_its_place(make: Callable[[Path], Any]) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.unlink()
        make(path)

    return change


WAYS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a folder": (in_its_place(Path.mkdir), "a folder in its place"),
    "a pipe": (in_its_place(os.mkfifo), "not a regular file"),
    "a link to itself": (
        in_its_place(lambda path: path.symlink_to(path)),
        "a link in its place: put the file itself there",
    ),
}
MANIFESTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "EIO": (in_its_place(lambda path: path.symlink_to("/proc/self/mem")), "a link in its place"),
    "deep": (lambda path: path.write_text("[" * 200_000), "it is too deep"),
    "null": (lambda path: path.write_text("null"), "can't be read"),
    "a list": (lambda path: path.write_text("[1]"), "can't be read"),
    "long": (lambda path: os.truncate(path, 1 << 40), "it is longer than"),
}


@pytest.mark.parametrize("name", ["training.safetensors", "rank-0.safetensors", "manifest.json"])
@pytest.mark.parametrize("way", WAYS)
def test_a_file_that_can_not_be_read_is_passed_over_by_name(
    written: Path, name: str, way: str
) -> None:
    change, words = WAYS[way]
    change(written / "step-00000003" / name)
    with (
        pytest.warns(
            UserWarning, match=rf"step-00000003 .*{name}.*{words}.*: resuming from .*step-00000002"
        ),
        session(checkpoint=written) as s,
    ):
        train(s)
    assert folder.verify(written / "step-00000003")["step"] == 3


@pytest.mark.parametrize("way", MANIFESTS)
def test_a_manifest_that_can_not_be_read_is_passed_over_by_name(written: Path, way: str) -> None:
    change, words = MANIFESTS[way]
    change(written / "step-00000003" / "manifest.json")
    with pytest.warns(
        UserWarning,
        match=rf"step-00000003 .*manifest.json.*{words}.*: resuming from .*step-00000002",
    ):
        assert latest(written) == written / "step-00000002"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize(
    "what", ["step-00000003", "step-00000003/training.safetensors", "step-00000003/manifest.json"]
)
def test_what_belongs_to_somebody_else_is_passed_over_by_name(
    run: Any, written: Path, what: str
) -> None:
    script = """
        import os, sys, warnings
        from pathlib import Path
        warnings.simplefilter("always")
        from torchbus_checkpoint.disk.choice import latest
        parent, what = sys.argv[1:]
        os.chmod(os.path.join(parent, what), 0)
        os.chmod(parent, 0o777)
        for one in list(Path(parent).parents)[:-2]:
            os.chmod(one, 0o755)
        os.setgid(65534), os.setuid(65534)
        print(latest(parent).name)
    """
    found = run(dedent(script), written, what, folder=written.parent).ok()
    assert (
        found.stdout == "step-00000002\n"
        and "step-00000003" in found.stderr
        and "Permission denied" in found.stderr
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("files", None),
        ("files", {}),
        ("files", {"../training.safetensors": {"bytes": 1, "sha256": ""}}),
        ("files", {"training.safetensors": None}),
        ("world_size", -1),
        ("world_size", "1"),
        ("step", "3"),
        ("step", -1),
        ("step", True),
        ("batches_per_step", 0.5),
    ],
)
def test_a_manifest_that_holds_odd_things(written: Path, key: str, value: Any) -> None:
    """Its checksum fits: somebody has made it."""
    path = written / "step-00000003" / "manifest.json"
    content = json.loads(path.read_text()) | {key: value}
    del content["sha256"]
    path.write_text(json.dumps(content | {"sha256": folder._digest(content)}))
    if value == {}:
        with (
            pytest.raises(CheckpointError, match="step-00000003 has no rank-0.safetensors"),
            session(checkpoint=written) as s,
        ):
            train(s)
        return
    with pytest.warns(
        UserWarning, match=r"step-00000003 is damaged: manifest.json can't be read \("
    ):
        assert latest(written) == written / "step-00000002"


def test_a_folder_that_can_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "all").symlink_to(tmp_path / "all")
    with pytest.raises(CheckpointError, match="the folder .*all can't be read: Too many levels"):
        latest(tmp_path / "all")


def test_the_order_is_that_of_the_numbers(written: Path) -> None:
    shutil.copytree(written / "step-00000003", written / "step-100000000")
    shutil.copytree(written / "step-00000002", written / "step-99999999")
    assert [one.name for one in folder.found(written)][-2:] == ["step-99999999", "step-100000000"]
