"""The real client against a recording server: what the server receives, and what happens without
an answer.
"""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from torchbus_testing.recording import recording_server
from torchbus_testing.scripts import run as run_command
from torchbus_testing.scripts import run_script

SCRIPTS = Path(__file__).parent / "scripts"

pytestmark = [pytest.mark.timeout(900)]
PATIENCE_S = 600.0
ANSWERS = Path(__file__).with_name("answers.py")
KEY = "0123456789abcdef" * 2 + "fedcba98"
REFUSING = 9  # the port of "discard", where no server listens

SHARED_MODE = 67  # the number of this feature in wandb's telemetry

SCRIPT = SCRIPTS / "logging_loop.py"
ALONE = {"strategy": None}
VALUES = [(step, 1 / step) for step in range(1, 101)]


@pytest.fixture
def server(tmp_path):
    with recording_server(ANSWERS, tmp_path / "server") as server:
        yield server


def run(folder, port, options=None, policy=None, timeout_s=PATIENCE_S, key="WANDB_API_KEY", **hurt):
    """Run the script, which shall end well whatever the server does."""
    environment = {name: None for name in os.environ if name.startswith("WANDB_")} | {
        "HOME": str(folder),
        "WANDB_BASE_URL": f"http://127.0.0.1:{port}",
        "WANDB_ERROR_REPORTING": "false",
        key: KEY,
    }
    words = json.dumps([options or ALONE, policy or {}, hurt])
    result = run_script(SCRIPT, words, env=environment, cwd=folder, timeout_s=timeout_s)
    assert result.ok() and result.stdout.count("looped") == 1 and "ended" in result.stdout
    return result


def upserts(server) -> list[dict]:
    return [
        one["body"]["variables"]
        for one in server.requests()
        if one["path"] == "/graphql" and one["body"]["operationName"] == "UpsertBucket"
    ]


def arrived(server) -> list[dict]:
    """Return the lines of history that the server has received."""
    parts = [
        one["body"]["files"]
        for one in server.requests()
        if one["path"].endswith("/file_stream") and "files" in one["body"]
    ]
    return [
        json.loads(line)
        for part in parts
        for line in part.get("wandb-history.jsonl", {"content": []})["content"]
    ]


def labels(server) -> set[str]:
    """Labels distinguish the measurements of several machines in a shared run."""
    return set(re.findall(r"/l:(\w+)", json.dumps(server.requests())))


def kept(run, kind: str = "history") -> list[dict]:
    """The records of one kind in the folder of a run."""
    result = run_command(
        [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(run)], timeout_s=PATIENCE_S
    )
    assert result.ok()
    told = [json.loads(line) for line in result.stdout.splitlines()]
    return [record[kind].get("item", record[kind]) for record in told if record["type"] == kind]


def series(history: list[dict], name: str = "rank0") -> list[tuple[int, float]]:
    return [(item["step"], pytest.approx(item[name])) for item in history if name in item]


@pytest.mark.parametrize("key", ["WANDB_API_KEY", pytest.param("HUSH", marks=pytest.mark.slow)])
def test_everything_arrives_and_the_key_stays_secret(tmp_path, server, key):
    result = run(tmp_path, server.port, key=key)
    assert series(arrived(server)) == VALUES
    defined = json.loads(upserts(server)[-1]["config"])["_wandb"]["value"]["m"]
    assert defined[0]["1"] == "step" and any(
        metric.get("2") == "*" and metric["5"] == 1 for metric in defined
    )
    callers = {one["authorization"] for one in server.requests() if one["path"] == "/graphql"}
    assert {base64.b64decode(caller.removeprefix("Basic ")).decode() for caller in callers} == {
        f"api:{KEY}"
    }
    assert KEY not in result.stdout + result.stderr
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in files if KEY.encode() in path.read_bytes()] == [] and len(files) > 5


def begins_at(server, name: str = "wandb-history.jsonl") -> list[int]:
    """The numbers of the first lines of history in each upload, except those that continue one.

    A client that waits for a busy machine sends its lines in several requests.
    """
    parts = [one["body"] for one in server.requests() if one["path"].endswith("/file_stream")]
    files = [part["files"][name] for part in parts if name in part.get("files", {})]
    ends = [None, *(file["offset"] + len(file["content"]) for file in files)]
    return [file["offset"] for file, end in zip(files, ends, strict=False) if file["offset"] != end]


@pytest.mark.parametrize(("resume", "first"), [("allow", 100), (None, 0)])
def test_a_run_that_resumes_appends_to_the_run_of_its_id(tmp_path, server, resume, first):
    """With the id only, wandb writes over the run."""
    run(tmp_path, server.port, policy={"id": "continued", "resume": resume})
    assert {one["name"] for one in upserts(server)} == {"continued"}
    assert begins_at(server)[0] == first and series(arrived(server)) == VALUES


@pytest.mark.slow
def test_offline_runs_of_one_id_are_appended_when_they_are_sent(tmp_path, server):
    for _ in range(2):
        run(tmp_path, REFUSING, policy={"id": "continued", "resume": "allow", "mode": "offline"})
    folders = sorted((tmp_path / "wandb").glob("offline-run-*-continued"))
    place = {"WANDB_BASE_URL": f"http://127.0.0.1:{server.port}", "WANDB_API_KEY": KEY}
    command = [sys.executable, "-m", "wandb", "sync", *map(str, folders)]
    env = {"HOME": str(tmp_path), **place}
    assert run_command(command, env=env, cwd=tmp_path, timeout_s=PATIENCE_S).ok()
    assert len(folders) == 2 and begins_at(server) == [100, 100]
    assert series(arrived(server)) == VALUES * 2


@pytest.mark.slow
def test_three_ranks_have_one_run(tmp_path, server):
    pytest.importorskip("torchbus_ddp")
    run(tmp_path, server.port, {"strategy": "ddp", "devices": 3, "launch": "fork"})
    assert len({one["name"] for one in upserts(server)}) == 1
    assert json.loads(upserts(server)[-1]["config"])["torchbus"]["value"]["world_size"] == 3
    history = arrived(server)
    assert series(history) == VALUES and {
        name for item in history for name in item if name.startswith("rank")
    } == {"rank0"}


@pytest.mark.parametrize("mode", [None, pytest.param("online", marks=pytest.mark.slow)])
def test_all_ranks_write_into_one_run(tmp_path, server, mode):
    pytest.importorskip("torchbus_ddp")
    run(
        tmp_path,
        server.port,
        {"strategy": "ddp", "devices": 2, "launch": "fork"},
        {"ranks": "all", "mode": mode},
    )
    assert len({one["name"] for one in upserts(server)}) == 1
    assert [series(arrived(server), f"rank{rank}") for rank in range(2)] == [VALUES, VALUES]
    assert labels(server) == {"rank_0", "rank_1"}
    assert all(
        SHARED_MODE in json.loads(one["config"])["_wandb"]["value"]["t"]["3"]
        for one in upserts(server)
    )


@pytest.mark.slow
def test_all_ranks_offline_have_runs_in_one_group(tmp_path):
    pytest.importorskip("torchbus_ddp")
    run(
        tmp_path,
        REFUSING,
        {"strategy": "ddp", "devices": 2, "launch": "fork"},
        {"ranks": "all", "mode": "offline"},
    )
    runs = sorted((tmp_path / "wandb").glob("offline-run-*"), key=lambda run: run.name[-1])
    assert [series(kept(run), f"rank{rank}") for rank, run in enumerate(runs)] == [VALUES, VALUES]
    told = [kept(run, "run")[0] for run in runs]
    assert [one["run_id"] for one in told] == [
        f"{told[0]['run_group']}-rank{rank}" for rank in range(2)
    ]
    assert told[0]["run_group"] == told[1]["run_group"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start_timeout_s", "cause"),
    [(18, r"CommError: .*connection refused"), (2, r"no answer within 2 s")],
)
def test_no_server_at_the_start(tmp_path, start_timeout_s, cause):
    """There is one warning and one complete offline run, also if the first start of the client is
    still running.
    """
    policy = {"start_timeout_s": start_timeout_s}
    result = run(
        tmp_path,
        REFUSING,
        policy=policy,
        timeout_s=120.0,
        pause_s=0.15 if start_timeout_s == 2 else 0.0,
    )
    assert (
        re.search(f"wandb did not start, it continues offline: {cause}", result.stderr)
        and result.stderr.count("UserWarning") == 1
    )
    assert "wandb: offline, its start failed; 100 calls, 0 failed" in result.stdout
    (offline,) = (tmp_path / "wandb").glob("offline-run-*")
    assert series(kept(offline)) == VALUES


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_that_dies_holds_nothing_up(tmp_path, server, number):
    """The loop ends in bounded time, and a warning names the folder with unsent calls."""
    result = run(
        tmp_path,
        server.port,
        policy={"finish_timeout_s": 8},
        timeout_s=120.0,
        pid=server.process.pid,
        signal=number,
    )
    (folder,) = (tmp_path / "wandb").glob("run-*")
    told = f"wandb did not finish: TimeoutError: not everything was sent within 3 s. 100 calls are kept: wandb sync {folder}"
    assert told in result.stderr and result.stderr.count("UserWarning") == 1
    # a client may retry for days
    assert float(result.stdout.rsplit("ended after ", 1)[1].split()[0]) < 60.0
    assert series(arrived(server)) != VALUES and series(kept(folder)) == VALUES
