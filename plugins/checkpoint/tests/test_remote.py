"""Checkpoints in a store: a real S3 server on this machine, a folder, and fsspec's memory."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from torch import nn
from torchbus import session
from torchbus.errors import UsageError

from torchbus_checkpoint import CheckpointError, best, latest
from torchbus_checkpoint.disk import folder
from torchbus_checkpoint.folder_lock import lock
from torchbus_checkpoint.folder_lock.owner import Owner
from torchbus_checkpoint.remote import claim, job, mirror, names, patience, url
from torchbus_checkpoint.remote.store import Store, StoreError

from .small_store import Way

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    """The port of an S3 server."""
    moto = pytest.importorskip("moto.server", reason="no S3 server: pip install 'moto[s3]' flask flask-cors s3fs")
    pytest.importorskip("s3fs", reason="no way to S3: pip install s3fs")
    running = moto.ThreadedMotoServer(port=0, verbose=False)
    running.start()
    yield running.get_host_and_port()[1]
    running.stop()


@pytest.fixture
def way(server: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    import s3fs
    found = Way(server)
    variables = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_MAX_ATTEMPTS": "1", "AWS_DEFAULT_REGION": "us-east-1"}
    for name, value in {**variables, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{found.port}"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem().mkdir("bucket") if not s3fs.S3FileSystem().exists("bucket") else None
    yield found
    found.cut()
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def s3(way: Any) -> str:
    return f"s3://bucket/{uuid.uuid4().hex}"


@pytest.fixture(params=["memory", "file", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A URL of each kind."""
    if request.param == "s3":
        return str(request.getfixturevalue("s3"))
    return f"memory://{uuid.uuid4().hex}/run" if request.param == "memory" else f"file://{tmp_path / 'store' / 'run'}"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(patience, "FIRST_S", 0.05)
    monkeypatch.setattr(job, "PATIENCE_AFTER_ERROR_S", 30.0)


class Cut(Exception):
    pass


def train(s: Any, count: int = 6, at: Callable[[int], None] = lambda step: None) -> float:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([weight], lr=0.1)
    for step in s.epochs(count):
        optimizer.zero_grad()
        (weight * torch.rand(3)).sum().backward()
        optimizer.step()
        at(step)
    return weight.sum().item()


def cut_at(number: int) -> Callable[[int], None]:
    def at(step: int) -> None:
        if step == number:
            raise Cut

    return at


def whole(place: str) -> list[str]:
    return [one.name for one in names.there(Store(place)) if one.is_whole]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# Written, and gone on from -----------------------------------------------------------------------------------------


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
    assert [one.local for one in names.there(Store(place))][-2:] == ["step-00000005", "step-00000006"]
    assert set(Store(place).sizes()[whole(place)[-1]]) == {"manifest.json", "rank-0.pt", "training.pt"}
    assert len(names.there(Store(place))) == 2 and Store(place).read(claim.NAME) is None
    assert sorted(os.listdir("here")) == ["step-00000005", "step-00000006"]


def test_the_best_stay_in_the_store(place: str) -> None:
    def log(step: int) -> None:
        s.log("loss", [3.0, 1.0, 2.0, 4.0, 5.0, 6.0][step])
        wait_for(lambda: not step or any(one.startswith(f"step-{step:08d}") for one in whole(place)))

    with session("log", checkpoint=place, every_n_steps=1, keep=2, monitor="loss") as s:
        train(s, at=log)
    assert [one.local for one in names.there(Store(place))] == ["step-00000002", "step-00000003", "step-00000006"]


def test_one_without_a_manifest_is_none(place: str, tmp_path: Path) -> None:
    """A run that was killed while it sent its first: nothing to go on from; what it has begun is finished or removed."""
    store = Store(place)
    store.write("step-00000003/training.pt", b"half")
    store.write("step-00000001/training.pt", b"half")
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
    store.write("step-00000004/training.pt", b"other")
    store.remove("step-00000003/rank-0.pt")
    begun: list[int] = []
    words = r"step-00000004 is passed over: .*training.pt has 5 bytes|step-00000003 is passed over: a file is missing: .*rank-0.pt"
    with pytest.warns(UserWarning, match=words) as caught, session(checkpoint=place, every_n_steps=1) as s:
        train(s, at=begun.append)
    assert begun == [2, 3, 4, 5] and len([one for one in caught if "is passed over" in str(one.message)]) == 2
    assert [one.local for one in names.there(store)] == [f"step-0000000{step}" for step in (4, 5, 6)]


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
    assert whole(s3)[-1].startswith("step-00000008") and latest(tmp_path / "second/checkpoints/s3/bucket" / s3.rpartition("/")[2])


# A store that is away ----------------------------------------------------------------------------------------------


def test_a_store_that_is_away_stops_nothing(s3: str, way: Any, capfd: pytest.CaptureFixture[str]) -> None:
    def at(step: int) -> None:
        if step == 2:
            wait_for(lambda: "step-00000002" in whole(s3))
            way.cut()
        if step == 7:
            way.begin()

    with session(checkpoint=s3, every_n_steps=1, keep=2) as s:
        train(s, 10, at)
    said = capfd.readouterr().err
    assert said.count("can't be reached") <= 1
    assert [one.local for one in names.there(Store(s3))][-1] == "step-00000010" and len(whole(s3)) == 2


def test_a_store_that_is_away_at_the_end(
    s3: str, way: Any, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The local copies stay, which is said; the next run sends them."""

    def at(step: int) -> None:
        if step == 2:
            wait_for(lambda: "step-00000002" in whole(s3))
            way.cut()

    with monkeypatch.context() as soon, session(checkpoint=s3, every_n_steps=1, keep=2) as s:
        soon.setattr(mirror, "PATIENCE_S", 0.5)
        train(s, at=at)
    said, here = capfd.readouterr().err, tmp_path / "checkpoints" / s3.replace("://", "/")
    assert f"torchbus: {s3} can't be reached (" in said and f"training goes on, and checkpoints stay in {here} until it is back" in said
    assert f"torchbus: not in {s3}: step-00000005, step-00000006. Whole in {here}" in said
    assert [one.name for one in folder.found(here)] == ["step-00000005", "step-00000006"]
    with pytest.warns(UserWarning, match="resuming from what is in"), session(checkpoint=s3, every_n_steps=1, keep=2) as s:
        way.begin()
        train(s, 6)
    assert [one.local for one in names.there(Store(s3))] == ["step-00000005", "step-00000006"]


def test_a_store_that_is_slow_when_it_is_back(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A file whose transfer shows no sign of life takes longer than a store that is away is waited for."""
    put, tries, place = Store.put, [], f"memory://{uuid.uuid4().hex}/run"

    def slowly(store: Store, local: Path, name: str, moved: Callable[[int], None]) -> None:
        tries.append(name)
        if len(tries) == 1:
            raise StoreError("away")
        time.sleep(2.5 * (len(tries) == 2))
        put(store, local, name, moved)

    monkeypatch.setattr(Store, "put", slowly)
    monkeypatch.setattr(mirror, "PATIENCE_S", 1.0)
    with session(checkpoint=place, every_n_steps=100) as s:
        train(s, 2)
    assert whole(place) == ["step-00000002"]
    said = capfd.readouterr().err
    assert f"{place} is back" in said and "not in" not in said


def test_a_store_that_is_away_in_the_beginning(s3: str, way: Any) -> None:
    way.cut()
    words = f"checkpoint='{s3}': nobody can tell whether there is something to go on from: "
    with pytest.raises(CheckpointError, match=words), session(checkpoint=s3):
        pass


@pytest.mark.parametrize("num_bytes", [700, 2000, 5000])
def test_a_way_that_ends_in_the_middle_of_a_file(s3: str, way: Any, server: int, num_bytes: int) -> None:
    """Whole or not at all, at whichever byte, and sent again."""
    import s3fs

    directly = s3fs.S3FileSystem(endpoint_url=f"http://127.0.0.1:{server}", use_listings_cache=False)

    def at(step: int) -> None:
        if step == 3:
            way.bytes_until_cut = num_bytes
        if step == 5:
            wait_for(lambda: not way.is_open)
            files = [path.split("/")[-2:] for path in directly.find(s3.removeprefix("s3://"))]
            assert all([name, other] in files for name, file in files if file == "manifest.json" for other in ("rank-0.pt", "training.pt"))
            way.begin()

    with session(checkpoint=s3, every_n_steps=1) as s:
        train(s, 8, at)
    assert whole(s3)[-1].startswith("step-00000008") and all(one.is_whole for one in names.there(Store(s3)))


def test_nothing_is_written_over(place: str) -> None:
    """A step that is sent a second time stands beside the first until it is whole; one that was begun is finished."""
    store, name = Store(place), "step-00000003"
    assert names.free(name, names.there(store)) == name
    steps = {"/training.pt": name, "/manifest.json": f"{name}.2", ".2/training.pt": f"{name}.2", ".2/manifest.json": f"{name}.3"}
    for file, expected in steps.items():
        store.write(name + file, b"{}")
        assert names.free(name, names.there(store)) == expected
    assert [one.name for one in names.superseded(names.there(store))] == [name]


def test_it_waits_ever_longer() -> None:
    wait_s = patience.waits(0.5)
    assert [wait_s() for _ in range(9)] == [0.5, 1, 2, 4, 8, 16, 32, 60, 60]


# Two jobs ----------------------------------------------------------------------------------------------------------


def test_a_second_job_is_refused(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "PATIENCE_S", 0.0)
    alive = replace(Owner.here(), pid=os.getppid(), began="")
    Store(place).write(claim.NAME, alive.note())
    with pytest.raises(CheckpointError, match=f"another job writes its checkpoints to {place}: process {alive.pid} on"), session(checkpoint=place):
        pass
    assert Store(place).read(claim.NAME) == alive.note() and not folder.found(url.local_folder(place))


def test_a_dead_job_is_followed_at_once(place: str, capfd: pytest.CaptureFixture[str]) -> None:
    Store(place).write(claim.NAME, replace(Owner.here(), began="another one").note())
    with session(checkpoint=place) as s:
        train(s, 2)
    assert capfd.readouterr().err == ""
    Store(place).write(claim.NAME, Owner("far", 7, "2026-01-01 00:00:00 +0000").note())
    with session(checkpoint=place) as s:
        train(s, 3)
    assert "was process 7 on 'far', since 2026-01-01 00:00:00 +0000, which did not say that it ended" in capfd.readouterr().err


def test_a_job_that_another_host_follows_gives_way(place: str) -> None:
    other = Owner("far", 7, "2026-01-01 00:00:00 +0000").note()

    def at(step: int) -> None:
        if step == 2:
            Store(place).write(claim.NAME, other)
        time.sleep(0.05 * (step > 2))

    words = "another job writes .* now: process 7 on 'far'.* This one gives way"
    with pytest.raises(CheckpointError, match=words), session(checkpoint=place, every_n_steps=1) as s:
        train(s, 500, at)
    assert Store(place).read(claim.NAME) == other


# What is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "words"), [
    ({"checkpoint": "gs://bucket/run"}, r"needs a package that is not installed: pip install \"torchbus-checkpoint\[remote\]\""),
    ({"checkpoint": "nothing://bucket/run"}, "nothing"),
    ({"checkpoint": Path("s3://bucket/run")}, "was a URL: pass it as a string"),
    ({"checkpoint": "all", "local_copy": "here"}, "is about a remote folder"),
    ({"checkpoint": "all", "resume": "s3://bucket/run/step-00000001"}, "this must be a local folder"),
    ({"checkpoint": "memory://x", "local_copy": 3}, "a folder"),
])  # fmt: skip
def test_bad_input(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        session(**options)


def test_save_and_load_are_local() -> None:
    with session() as s:
        for verb in (s.save, s.load):
            with pytest.raises(UsageError, match="this must be a local folder; checkpoint='s3://...' writes to a remote one"):
                verb("memory://x/y")
    for function in (best, latest):
        with pytest.raises(UsageError, match="this must be a local folder"):
            function("memory://x/y")


def test_never_resume(place: str) -> None:
    Store(place).write("step-00000003/manifest.json", b"{}")
    words = "resume='never', but .* has checkpoints of an earlier run, the last one step-00000003"
    with pytest.raises(UsageError, match=words), session(checkpoint=place, resume="never"):
        pass
    assert Store(place).read(claim.NAME) is None


def test_no_password_is_shown(tmp_path: Path) -> None:
    assert url.shown("sftp://me:secret@host/run") == "sftp://me:***@host/run"
    assert url.local_folder("sftp://me:secret@host:22/a/../run?x=1") == Path("checkpoints/sftp/host_22/a/run") or "secret" not in str(
        url.local_folder("sftp://me:secret@host:22/a/../run?x=1"))
    with pytest.raises(StoreError) as error:
        store = Store(f"file://{tmp_path}")
        store.url = url.shown("sftp://me:secret@host/run")
        store.get("missing", tmp_path / "x", lambda count: None)
    assert "secret" not in str(error.value)


def test_manifests_of_a_store_that_hold_anything(place: str) -> None:
    """Names that lead out of the folder, brackets without end: passed over by name."""
    store = Store(place)
    for step, data in enumerate((b"[" * 100_000, b"null", json.dumps({"files": {"../../x": {}}}).encode())):
        store.write(f"step-0000000{step + 1}/manifest.json", data)
    begun: list[int] = []
    with pytest.warns(UserWarning, match="is passed over") as caught, session(checkpoint=place, every_n_steps=100) as s:
        train(s, 4, begun.append)
    assert begun == [0, 1, 2, 3] and len([one for one in caught if "is passed over" in str(one.message)]) == 3
