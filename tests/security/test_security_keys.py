"""Ranks of one key meet, ranks of two do not, and jobs at one port leave each other alone."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from meetings import environment, free_port

from torchbus_testing.scripts import Result, start, write_script

JOINS = """
    from torchbus import session
    with session(strategy="ddp", accelerator="cpu") as s:
        print("joined", flush=True)
"""


def joined(tmp_path: Path, envs: list[dict[str, str]]) -> list[Result]:
    """What becomes of two ranks that another launcher has started."""
    command = [sys.executable, str(write_script(tmp_path, JOINS))]
    port = free_port()
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(start(command, env=environment(rank, port, tmp_path) | env))
            for rank, env in enumerate(envs)
        ]
        return [one.wait(60) for one in running]


def test_ranks_of_two_keys_do_not_meet(tmp_path: Path) -> None:
    results = joined(
        tmp_path,
        [
            {"TORCHBUS_KEY": "one secret of many letters"},
            {"TORCHBUS_KEY": "another secret of letters"},
        ],
    )
    for result in results:
        assert result.status == 1
        assert (
            "LaunchError: rank 1 has a different key from rank 0" in result.stderr
            and "Set TORCHBUS_KEY to the same secret on all hosts" in result.stderr
        )


TRAINS = """
    import os, sys, time, torch
    from torchbus import session
    with session(strategy="ddp", accelerator="cpu") as s:
        for step in range(100_000):
            s.all_gather_object(step)
            if step == 3 and s.is_main:
                open(sys.argv[1], "w").close()
            if s.reduce(torch.tensor(float(os.path.exists(sys.argv[2]))), "min"):
                break
            time.sleep(0.02)
"""
SLURM = {
    "SLURM_STEP_ID": "0",
    "SLURM_NTASKS": "2",
    "SLURM_TASKS_PER_NODE": "2",
    "SLURM_STEP_NODELIST": "localhost",
    "SLURM_NODEID": "0",
}


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["environment", "SLURM"])
def test_a_second_job_at_the_port_of_the_first_leaves_it_alone(
    tmp_path: Path, launcher: str
) -> None:
    script, ready, enough, port = (
        write_script(tmp_path, TRAINS),
        tmp_path / "ready",
        tmp_path / "enough",
        free_port(),
    )

    def ranks(stack: contextlib.ExitStack, job: int) -> list[Any]:
        found = []
        for rank in range(2):
            slurm = {
                **SLURM,
                "SLURM_JOB_ID": str(job),
                "SLURM_PROCID": str(rank),
                "SLURM_LOCALID": str(rank),
                "RANK": None,
                "WORLD_SIZE": None,
            }
            env = {**environment(rank, port, tmp_path), **(slurm if launcher == "SLURM" else {})}
            found.append(
                stack.enter_context(
                    start([sys.executable, str(script), str(ready), str(enough)], env=env)
                )
            )
        return found

    with contextlib.ExitStack() as stack:
        first = ranks(stack, 1)
        wait_for(ready)
        second = [one.wait(60) for one in ranks(stack, 2)]
        enough.touch()
        assert all(one.wait(60).ok() for one in first)
    assert [one.status for one in second] == [1, 1]
    assert "If the port is in use, set MASTER_PORT to a free one" in second[0].stderr
    words = (
        "rank 1 has a different key from rank 0"
        if launcher == "SLURM"
        else "rank 1 of the job that listens there has joined already"
    )
    assert words in second[1].stderr
    assert "set a different MASTER_PORT for each" in second[1].stderr.replace("Set a", "set a")


def wait_for(file: Path, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_ranks_of_one_key_need_no_file(tmp_path: Path) -> None:
    results = joined(
        tmp_path,
        [{"TORCHBUS_KEY": "one secret of many letters", "XDG_CONFIG_HOME": "/dev/null"}] * 2,
    )
    assert all(result.ok() for result in results) and "joined" in results[0].stdout


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become somebody else"
)
def test_names_that_a_second_user_takes_first(tmp_path: Path) -> None:
    """In the temporary folder, where no home can be written: nothing is written where that user
    leads to, and with a secret of one's own the job runs as ever.
    """
    shared = Path(tempfile.mkdtemp(prefix="shared-"))
    shared.chmod(0o1777)
    nobody: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": [], "cwd": "/"}

    def theirs(*words: str) -> str:
        done = subprocess.run(words, check=True, capture_output=True, text=True, **nobody)
        return done.stdout

    try:
        theirs("mkdir", "-m", "777", f"{shared}/theirs")
        theirs("ln", "-s", f"{shared}/theirs", f"{shared}/torchbus-0")
        places = {"TMPDIR": str(shared), "XDG_CONFIG_HOME": "/dev/null/none"}
        for result in joined(tmp_path, [places, places]):
            assert result.status == 1 and "the secret of this user's jobs can be" in result.stderr
        assert theirs("ls", f"{shared}/theirs") == ""
        with_key = places | {"TORCHBUS_KEY": "one secret of many letters"}
        results = joined(tmp_path, [with_key, with_key])
        assert all(result.ok() for result in results) and "joined" in results[0].stdout
        assert theirs("find", str(shared), "-type", "f") == ""
    finally:
        shutil.rmtree(shared)
