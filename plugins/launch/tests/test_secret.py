"""The secret of which ranks that another launcher started make their job's key."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
from torchbus.errors import LaunchError, UsageError

from torchbus_launch import secret
from torchbus_launch.store import SealedStore

pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes of files")


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    return tmp_path / "config"


def test_a_secret_is_made_once_and_is_the_users_alone(home: Path) -> None:
    first = secret.derived(1234, 2, "", {})
    file = home / "torchbus" / "key"
    assert first == secret.derived(1234, 2, "", {}) and [
        path.name for path in file.parent.iterdir()
    ] == ["key"]
    assert (stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(file.parent.stat().st_mode)) == (
        0o600,
        0o700,
    )


def test_each_job_has_a_key_of_its_own(home: Path) -> None:
    environments = [{}, {"TORCHBUS_KEY": "s" * 16}, {"TORCHBUS_KEY": "t" * 16}]
    jobs = [
        (2, 2, "", {}),
        (1, 3, "", {}),
        (1, 2, "x", {}),
        *((1, 2, "", environment) for environment in environments),
    ]
    assert len({secret.derived(*job) for job in jobs}) == len(jobs)


def test_a_short_secret_is_refused(home: Path) -> None:
    with pytest.raises(
        UsageError,
        match=r"TORCHBUS_KEY has 3 characters and can be guessed: use at least 16\. Set TORCHBUS_KEY",
    ):
        secret.derived(1234, 2, "", {"TORCHBUS_KEY": "abc"})


@pytest.mark.parametrize("spoil", ["readable", "short", "folder"])
def test_a_file_that_others_may_know_is_refused(home: Path, spoil: str) -> None:
    secret.derived(1234, 2, "", {})
    file = home / "torchbus" / "key"
    if spoil == "readable":
        file.chmod(0o640)
    elif spoil == "short":
        file.write_bytes(b"")
    else:
        file.parent.chmod(0o770)
    with pytest.raises(
        LaunchError,
        match=r"key is not secret: .* \(chmod 600\).* \(chmod 700\).* Set TORCHBUS_KEY to the same secret",
    ):
        secret.derived(1234, 2, "", {})


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a file away"
)
def test_a_file_of_another_user_is_refused(home: Path) -> None:
    secret.derived(1234, 2, "", {})
    os.chown(home / "torchbus" / "key", 65534, 65534)
    with pytest.raises(LaunchError, match="is not secret"):
        secret.derived(1234, 2, "", {})


def test_without_a_home_it_is_kept_in_a_folder_of_this_host(home: Path) -> None:
    home.write_text("a file, where a folder should be")
    assert secret.derived(1234, 2, "", {}) == secret.derived(1234, 2, "", {})
    (place,) = home.parent.glob("torchbus-*")
    assert stat.S_IMODE(place.stat().st_mode) == 0o700 and (place / "key").exists()
    (place / "key").unlink()
    place.rmdir()
    place.write_text("a file here, too")
    with pytest.raises(
        LaunchError,
        match=r"can be stored neither in .*config/torchbus/key \(Not a directory\) nor in .* Set TORCHBUS_KEY",
    ):
        secret.derived(1234, 2, "", {})


def test_a_folder_whose_name_somebody_has_taken_is_not_used(home: Path, tmp_path: Path) -> None:
    """Where it is a link to a folder of this user, and where it holds a key of another one."""
    home.write_text("no home")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    taken = secret.places()[1].parent
    taken.symlink_to(elsewhere)
    with pytest.raises(LaunchError, match="can be stored neither in"):
        secret.derived(1234, 2, "", {})
    assert list(elsewhere.iterdir()) == []
    (elsewhere / "key").write_bytes(bytes(32))
    (elsewhere / "key").chmod(0o600)
    with pytest.raises(LaunchError, match="key is not secret: the file and its folder must be"):
        secret.derived(1234, 2, "", {})
    taken.unlink()
    secret.derived(1234, 2, "", {})
    (taken / "key").unlink()
    (taken / "key").symlink_to(elsewhere / "key")
    with pytest.raises(LaunchError, match="can be stored neither in"):
        secret.derived(1234, 2, "", {})
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted(
        ["config", "elsewhere", taken.name]
    )


def started(raw: dist.Store, key: bytes, world_size: int = 3) -> list[bytes]:
    """The keys that the ranks of a job agree upon."""

    def draw(rank: int) -> bytes:
        return secret.drawn(SealedStore(raw, key, "attempt 0/"), rank, world_size)

    with ThreadPoolExecutor(world_size) as threads:
        return list(threads.map(draw, range(world_size)))


def test_each_start_has_a_key_of_its_own_whatever_was_recorded_before() -> None:
    """Everything that an earlier job at the same port has written is there already."""
    raw, key = dist.HashStore(), bytes(32)
    raw.set_timeout(timedelta(seconds=20))
    first = started(raw, key)
    SealedStore(raw, first[0], "attempt 0/").set("save and stop", "143")
    second = started(raw, key)
    assert len({*first}) == len({*second}) == 1 and first[0] != second[0]
    assert SealedStore(raw, second[0], "attempt 0/").read("save and stop") is None


def test_a_rank_without_the_users_secret_gets_no_key() -> None:
    raw = dist.HashStore()
    raw.set_timeout(timedelta(seconds=0.3))
    with pytest.raises(LaunchError, match="rank 0 did not answer within the session's timeout"):
        secret.drawn(SealedStore(raw, bytes(32)), 1, 2)
    with pytest.raises(LaunchError, match="a rank did not ask for rank 0's number"):
        secret.drawn(SealedStore(raw, b"other key"), 0, 2)
