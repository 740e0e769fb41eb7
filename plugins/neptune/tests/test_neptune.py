"""The real client: against a recording server, without one, and with one that dies."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest

from torchbus_testing.recording import recording_server
from torchbus_testing.scripts import run_script

SCRIPTS = Path(__file__).parent / "scripts"

pytestmark = [pytest.mark.timeout(900)]
PATIENCE_S = 600.0
ANSWERS = Path(__file__).with_name("answers.py")

SCRIPT = (SCRIPTS / "logs_steps.py").read_text()

RANKS = (SCRIPTS / "logs_on_ranks.py").read_text()


@pytest.fixture
def server(tmp_path):
    with recording_server(ANSWERS, tmp_path / "server") as server:
        yield server


def token(port: object) -> str:
    address = f"http://127.0.0.1:{port}"
    return base64.b64encode(
        json.dumps({"api_address": address, "api_url": address, "api_key": "hush"}).encode()
    ).decode()


def run(
    folder,
    port,
    *words,
    script=SCRIPT,
    start_timeout_s=500,
    finish_timeout_s=500,
    timeout_s=PATIENCE_S,
):
    environment = {
        "OAUTHLIB_INSECURE_TRANSPORT": "1",
        "NEPTUNE_API_TOKEN": None,
        "NEPTUNE_MODE": None,
    }
    result = run_script(
        script,
        token(port),
        start_timeout_s,
        finish_timeout_s,
        *words,
        env=environment,
        cwd=folder,
        timeout_s=timeout_s,
    )
    assert result.ok() and result.stdout.count("looped") == 1 and "ended" in result.stdout
    assert token(port) not in result.stdout + result.stderr
    return result


def operations(server) -> list[dict]:
    return [
        each
        for one in server.requests()
        if one["path"].endswith("/operations")
        for each in one["body"]
    ]


def points(server, name: str) -> list[tuple[float, float]]:
    series = [
        each["logFloats"]["entries"]
        for each in operations(server)
        if each["path"] == f"metrics/{name}"
    ]
    return [(entry["step"], entry["value"]) for entries in series for entry in entries]


def created(server) -> list[str | None]:
    """The names given to the runs that were made."""
    return [
        one["body"].get("customId")
        for one in server.requests()
        if one["path"].endswith("/experiments")
    ]


def test_everything_arrives_in_one_run(tmp_path, server):
    run(tmp_path, server.port)
    assert len(created(server)) == 1
    assert points(server, "loss") == [(float(step), 1 / (step + 1)) for step in range(100)]
    assert any(each["path"].startswith("monitoring/rank0/") for each in operations(server))
    # what it received
    files = [path for path in tmp_path.rglob("*") if path.is_file() and "server" not in path.parts]
    assert [path.name for path in files if token(server.port).encode() in path.read_bytes()] == []


@pytest.mark.slow
@pytest.mark.parametrize("ranks", ["main", "all"])
def test_three_ranks_have_one_run(tmp_path, server, ranks):
    """It is rank 0's run, or one run of all ranks, with one ``custom_run_id``."""
    pytest.importorskip("torchbus_ddp")
    run(tmp_path, server.port, ranks, script=RANKS)
    reporting = range(3 if ranks == "all" else 1)
    assert len(created(server)) == len(reporting) and len(set(created(server))) == 1
    assert (created(server)[0] is None) == (ranks == "main")
    values = [(float(step), step / 2) for step in range(20)]
    assert [points(server, f"rank{rank}") for rank in range(3)] == [
        values if rank in reporting else [] for rank in range(3)
    ]
    monitored = {
        each["path"].split("/")[1]
        for each in operations(server)
        if each["path"].startswith("monitoring/")
    }
    assert monitored == {f"rank{rank}" for rank in reporting}


@pytest.mark.slow
def test_no_server_at_the_start(tmp_path):
    """Values go into the client's offline files."""
    result = run(tmp_path, 9, start_timeout_s=3, timeout_s=120.0)
    assert (
        "neptune did not start, it continues offline" in result.stderr
        and "offline, its start failed" in result.stdout
    )
    (queue,) = (tmp_path / ".neptune" / "offline").glob("*/data-1.log")
    operations = [json.loads(line)["obj"] for line in queue.read_text().splitlines()]
    assert (
        sum(
            len(one["values"])
            for one in operations
            if one["type"] == "LogFloats" and one["path"] == ["metrics", "loss"]
        )
        == 100
    )


@pytest.mark.slow
def test_a_server_that_dies_holds_nothing_up(tmp_path, server):
    """The loop runs to its end in bounded time, and the client stores unsent operations."""
    result = run(tmp_path, server.port, server.process.pid, finish_timeout_s=8, timeout_s=120.0)
    assert re.search(
        r"Failed to sync all operations in .* You have [1-9]\d* operations saved on disk",
        result.stdout + result.stderr,
    )
    (queue,) = (tmp_path / ".neptune" / "async").glob("*/data-*.log")
    assert queue.read_text().count('["metrics", "loss"]') == 100 > len(points(server, "loss"))


NO_TOKEN = """
import sys
from torchbus import session
from torchbus_neptune.logger import NeptuneLogger

with session(NeptuneLogger(on_error=sys.argv[1]), strategy=None) as s:
    print("looped", s.explain())
"""
CLOSED = (
    "neptune has no API token, and its hosted service was shut down in March 2026. Give NeptuneLogger the token"
    " of a self-hosted server, or mode='offline'; `neptune sync` sends an offline folder to a"
    " server later"
)


@pytest.mark.parametrize(
    ("on_error", "told"),
    [
        pytest.param(
            "warn",
            f"UserWarning: {CLOSED}. It continues offline, in the folder .neptune",
            marks=pytest.mark.slow,
        ),
        ("raise", f"torchbus.errors.PluginError: {CLOSED}"),
    ],
)
def test_without_a_token_it_says_what_works_today(tmp_path, on_error, told):
    """The client's error is a page in colours with a link to a site that is closed."""
    nothing = {"NEPTUNE_API_TOKEN": None, "NEPTUNE_MODE": None}
    result = run_script(NO_TOKEN, on_error, env=nothing, cwd=tmp_path, timeout_s=PATIENCE_S)
    assert told in result.stderr
    assert "\x1b" not in result.stderr and "app.neptune.ai" not in result.stderr
    if on_error == "warn":
        assert result.ok() and "neptune: running" in result.stdout
        assert list(tmp_path.glob(".neptune/*"))
