"""Checkpoints in a store: a real S3 server on this machine, a folder, and fsspec's memory."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from torchbus import session
from torchbus.errors import UsageError

from torchbus_checkpoint import locks
from torchbus_checkpoint.disk.choice import best, latest
from torchbus_checkpoint.remote import store as names
from torchbus_checkpoint.remote import store as url
from torchbus_checkpoint.remote.store import Store, StoreError

from .store_runs import train, wait_for, whole

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


class Cut(Exception):
    pass


def cut_at(number: int) -> Callable[[int], None]:
    def at(step: int) -> None:
        if step == number:
            raise Cut

    return at


def test_a_run_goes_on_from_the_store(place: str, tmp_path: Path) -> None:
    """On a machine that has nothing of it. The store holds what ``keep`` says, and nothing else."""
    with session() as s:
        expected = train(s)
    with pytest.raises(Cut), session(checkpoint=place, every_n_steps=1, keep=2) as s:
        assert f"andsentto{place}" in "".join(s.explain().split())
        train(s, at=cut_at(4))
    assert whole(place)[-1] == "step-00000004"
    shutil.rmtree(tmp_path / "checkpoints")
    begun = []
    with session(checkpoint=place, every_n_steps=1, keep=2, local_copy="here") as s:
        assert train(s, at=begun.append) == expected
    assert begun == [4, 5]
    assert [one.local for one in names.there(Store(place))][-2:] == [
        "step-00000005",
        "step-00000006",
    ]
    assert set(Store(place).sizes()[whole(place)[-1]]) == {
        "manifest.json",
        "rank-0.safetensors",
        "training.safetensors",
    }
    assert len(names.there(Store(place))) == 2 and Store(place).read(locks.NAME) is None
    assert sorted(os.listdir("here")) == ["step-00000005", "step-00000006"]


def test_the_best_stay_in_the_store(place: str) -> None:
    def log(step: int) -> None:
        s.log("loss", [3.0, 1.0, 2.0, 4.0, 5.0, 6.0][step])
        wait_for(
            lambda: not step or any(one.startswith(f"step-{step:08d}") for one in whole(place))
        )

    with session("log", checkpoint=place, every_n_steps=1, keep=2, monitor="loss") as s:
        train(s, at=log)
    assert [one.local for one in names.there(Store(place))] == [
        "step-00000002",
        "step-00000003",
        "step-00000006",
    ]


def test_a_value_that_comes_after_its_checkpoint(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store gets the new manifest, and not the tensors again."""
    sent: list[str] = []
    put = Store.put

    def record(self: Store, local: Path, name: str, moved: Callable[[int], None]) -> None:
        sent.append(name)
        put(self, local, name, moved)

    monkeypatch.setattr(Store, "put", record)
    with session("log", checkpoint=place, every_n_steps=1, keep=2, monitor="loss") as s:
        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for step in s.epochs(3):
            wait_for(lambda: not step or f"step-{step:08d}" in whole(place))  # noqa: B023
            s.log("loss", [9.0, 1.0, 2.0][step])  # of the checkpoint before this step
            weight.sum().backward()
            optimizer.step()
    found = {
        one.local: json.loads(Store(place).read(f"{one.name}/manifest.json") or b"")["metric"]
        for one in names.there(Store(place))
    }
    assert found == {"step-00000001": 1.0, "step-00000002": 2.0, "step-00000003": None}
    assert sent.count("step-00000001/manifest.json") == 2
    assert sent.count("step-00000001/training.safetensors") == 1


def test_one_without_a_manifest_is_none(place: str, tmp_path: Path) -> None:
    """A run that was killed while it sent its first: nothing to go on from; what it has begun is
    finished or removed.
    """
    store = Store(place)
    store.write("step-00000003/training.safetensors", b"half")
    store.write("step-00000001/training.safetensors", b"half")
    begun: list[int] = []
    with session(checkpoint=place, every_n_steps=100) as s:
        train(s, 3, begun.append)
    assert begun == [0, 1, 2] and [one.name for one in names.there(store)] == ["step-00000003"]
    shutil.rmtree(tmp_path / "checkpoints")
    with session(checkpoint=place, every_n_steps=100) as s:
        train(s, 3, begun.append)
    assert begun == [0, 1, 2]


def test_a_damaged_one_is_passed_over_by_name(place: str, tmp_path: Path) -> None:
    def at(step: int) -> None:
        wait_for(lambda: not step or whole(place)[-1:] == [f"step-{step:08d}"])
        cut_at(4)(step)

    with pytest.raises(Cut), session(checkpoint=place, every_n_steps=1) as s:
        train(s, at=at)
    shutil.rmtree(tmp_path / "checkpoints")
    store = Store(place)
    store.write("step-00000004/training.safetensors", b"other")
    store.remove("step-00000003/rank-0.safetensors")
    begun: list[int] = []
    words = r"step-00000004 is skipped: .*training.safetensors has 5 bytes|step-00000003 is skipped: a file is missing: .*rank-0.safetensors"
    with (
        pytest.warns(UserWarning, match=words) as caught,
        session(checkpoint=place, every_n_steps=1) as s,
    ):
        train(s, at=begun.append)
    assert (
        begun == [2, 3, 4, 5]
        and len([one for one in caught if "is skipped" in str(one.message)]) == 2
    )
    assert [one.local for one in names.there(store)] == [
        f"step-0000000{step}" for step in (4, 5, 6)
    ]


@pytest.mark.slow
def test_two_ranks(run: Any, s3: str, tmp_path: Path) -> None:
    """Killed while it sends; then on an empty machine."""
    script = """
        import os, shutil, signal, sys, torch
        from torch import nn
        from torchbus import session
        url, at = sys.argv[1], int(sys.argv[2])
        with session(strategy="ddp", devices=2, accelerator="cpu", launch="fork", checkpoint=url, every_n_steps=1, async_save=True) as s:
            torch.manual_seed(0)
            weight = nn.Parameter(torch.ones(300_000))
            optimizer = torch.optim.Adam([weight], lr=0.1)
            for step in s.epochs(8):
                optimizer.zero_grad()
                (weight * torch.rand(1)).sum().backward()
                optimizer.step()
                if step == at and s.rank == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
        print(step, weight.sum().item())
    """
    with_store = {name: os.environ[name] for name in os.environ if name.startswith("AWS_")}
    text = f"import os\nos.environ.update({with_store!r})\n" + dedent(script)
    expected = run(text, f"file://{tmp_path}/other", -1, folder=tmp_path / "expected").ok().stdout
    assert run(text, s3, 5, folder=tmp_path / "first").status == -signal.SIGKILL
    assert run(text, s3, -1, folder=tmp_path / "second").ok().stdout == expected
    assert whole(s3)[-1].startswith("step-00000008") and latest(
        tmp_path / "second/checkpoints/s3/bucket" / s3.rpartition("/")[2]
    )


def test_nothing_is_written_over(place: str) -> None:
    """A step that is sent a second time stands beside the first until it is whole; one that was
    begun is finished.
    """
    store, name = Store(place), "step-00000003"
    assert names.free(name, names.there(store)) == name
    steps = {
        "/training.safetensors": name,
        "/manifest.json": f"{name}.2",
        ".2/training.safetensors": f"{name}.2",
        ".2/manifest.json": f"{name}.3",
    }
    for file, expected in steps.items():
        store.write(name + file, b"{}")
        assert names.free(name, names.there(store)) == expected
    assert [one.name for one in names.superseded(names.there(store))] == [name]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"checkpoint": "gs://bucket/run"},
            r"needs a package that is not installed: pip install \"torchbus-checkpoint\[remote\]\"",
        ),
        ({"checkpoint": "nothing://bucket/run"}, "nothing"),
        ({"checkpoint": Path("s3://bucket/run")}, "was a URL: pass it as a string"),
        ({"checkpoint": "all", "local_copy": "here"}, "needs a remote folder"),
        (
            {"checkpoint": "all", "resume": "s3://bucket/run/step-00000001"},
            "this must be a local folder",
        ),
        ({"checkpoint": "memory://x", "local_copy": 3}, "a folder"),
    ],
)
def test_bad_input(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        session(**options)


def test_save_and_load_are_local() -> None:
    with session() as s:
        for verb in (s.save, s.load):
            with pytest.raises(
                UsageError,
                match="this must be a local folder; checkpoint='s3://...' writes to a remote one",
            ):
                verb("memory://x/y")
    for function in (best, latest):
        with pytest.raises(UsageError, match="this must be a local folder"):
            function("memory://x/y")


def test_never_resume(place: str) -> None:
    Store(place).write("step-00000003/manifest.json", b"{}")
    words = "resume='never', but .* has checkpoints of an earlier run, the last one step-00000003"
    with pytest.raises(UsageError, match=words), session(checkpoint=place, resume="never"):
        pass
    assert Store(place).read(locks.NAME) is None


def test_no_password_is_shown(tmp_path: Path) -> None:
    assert url.shown("sftp://me:secret@host/run") == "sftp://me:***@host/run"
    assert url.local_folder("sftp://me:secret@host:22/a/../run?x=1") == Path(
        "checkpoints/sftp/host_22/a/run"
    ) or "secret" not in str(url.local_folder("sftp://me:secret@host:22/a/../run?x=1"))
    with pytest.raises(StoreError) as error:
        store = Store(f"file://{tmp_path}")
        store.url = url.shown("sftp://me:secret@host/run")
        store.get("missing", tmp_path / "x", 10)
    assert "secret" not in str(error.value)


def test_manifests_of_a_store_that_hold_anything(place: str) -> None:
    """Names that lead out of the folder, brackets without end: passed over by name."""
    store = Store(place)
    for step, data in enumerate(
        (b"[" * 100_000, b"null", json.dumps({"files": {"../../x": {}}}).encode())
    ):
        store.write(f"step-0000000{step + 1}/manifest.json", data)
    begun: list[int] = []
    with (
        pytest.warns(UserWarning, match="is skipped") as caught,
        session(checkpoint=place, every_n_steps=100) as s,
    ):
        train(s, 4, begun.append)
    assert (
        begun == [0, 1, 2, 3]
        and len([one for one in caught if "is skipped" in str(one.message)]) == 3
    )
