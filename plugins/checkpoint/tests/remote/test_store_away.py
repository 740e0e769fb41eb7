"""A store that is away, slow, or ends in the middle of a file."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torchbus import session

from torchbus_checkpoint.disk import folder
from torchbus_checkpoint.errors import CheckpointError
from torchbus_checkpoint.remote import mirror
from torchbus_checkpoint.remote import store as names
from torchbus_checkpoint.remote import store as patience
from torchbus_checkpoint.remote.store import Store, StoreError

from .store_runs import train, wait_for, whole

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def test_a_store_that_is_away_stops_nothing(
    s3: str, way: Any, capfd: pytest.CaptureFixture[str]
) -> None:
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
    assert [one.local for one in names.there(Store(s3))][-1] == "step-00000010" and len(
        whole(s3)
    ) == 2


def test_a_store_that_is_away_at_the_end(
    s3: str,
    way: Any,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
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
    assert (
        f"torchbus: {s3} can't be reached (" in said
        and f"training continues, and checkpoints stay in {here} until it is back" in said
    )
    assert (
        f"torchbus: not sent to {s3}: step-00000005, step-00000006. They are whole in {here}"
        in said
    )
    assert [one.name for one in folder.found(here)] == ["step-00000005", "step-00000006"]
    with (
        pytest.warns(UserWarning, match="resuming from what is in"),
        session(checkpoint=s3, every_n_steps=1, keep=2) as s,
    ):
        way.begin()
        train(s, 6)
    assert [one.local for one in names.there(Store(s3))] == ["step-00000005", "step-00000006"]


def test_a_store_that_is_slow_when_it_is_back(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file whose transfer shows no sign of life takes longer than a store that is away is waited
    for.
    """
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
    words = f"checkpoint='{s3}': can't find out whether there is a checkpoint to resume from: "
    with pytest.raises(CheckpointError, match=words), session(checkpoint=s3):
        pass


@pytest.mark.parametrize("num_bytes", [700, 2000, 5000])
def test_a_way_that_ends_in_the_middle_of_a_file(
    s3: str, way: Any, server: int, num_bytes: int
) -> None:
    """Whole or not at all, at whichever byte, and sent again."""
    import s3fs

    directly = s3fs.S3FileSystem(
        endpoint_url=f"http://127.0.0.1:{server}", use_listings_cache=False
    )

    def at(step: int) -> None:
        if step == 3:
            way.bytes_until_cut = num_bytes
        if step == 5:
            wait_for(lambda: not way.is_open)
            files = [path.split("/")[-2:] for path in directly.find(s3.removeprefix("s3://"))]
            assert all(
                [name, other] in files
                for name, file in files
                if file == "manifest.json"
                for other in ("rank-0.safetensors", "training.safetensors")
            )
            way.begin()

    with session(checkpoint=s3, every_n_steps=1) as s:
        train(s, 8, at)
    assert whole(s3)[-1].startswith("step-00000008") and all(
        one.is_whole for one in names.there(Store(s3))
    )


def test_it_waits_ever_longer() -> None:
    wait_s = patience.waits(0.5)
    assert [wait_s() for _ in range(9)] == [0.5, 1, 2, 4, 8, 16, 32, 60, 60]
