"""The secret of which ranks that another launcher started make their job's key."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from torchbus._launch.store import secret
from torchbus.errors import LaunchError, UsageError

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
        match=r"can be kept neither in .*config/torchbus/key \(Not a directory\) nor in .* Set TORCHBUS_KEY",
    ):
        secret.derived(1234, 2, "", {})
