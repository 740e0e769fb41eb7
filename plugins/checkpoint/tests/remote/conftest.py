"""Fixtures of these tests."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchbus_checkpoint.remote import fetch
from torchbus_checkpoint.remote import store as patience

from .small_store import Way


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    """The port of an S3 server."""
    moto = pytest.importorskip(
        "moto.server", reason="no S3 server: pip install 'moto[s3]' flask flask-cors s3fs"
    )
    pytest.importorskip("s3fs", reason="no way to S3: pip install s3fs")
    running = moto.ThreadedMotoServer(port=0, verbose=False)
    running.start()
    yield running.get_host_and_port()[1]
    running.stop()


@pytest.fixture
def way(server: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    import s3fs

    found = Way(server)
    variables = {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_MAX_ATTEMPTS": "1",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
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
    return (
        f"memory://{uuid.uuid4().hex}/run"
        if request.param == "memory"
        else f"file://{tmp_path / 'store' / 'run'}"
    )


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(patience, "FIRST_S", 0.05)
    monkeypatch.setattr(fetch, "PATIENCE_AFTER_ERROR_S", 30.0)
