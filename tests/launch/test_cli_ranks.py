"""`torchbus run` and `torchbus doctor` with two real ranks.

Needs torchbus-ddp and torchbus-sampler.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

SCRIPTS = Path(__file__).parent / "scripts"

TRAIN = (SCRIPTS / "cli_train.py").read_text()
ONE_RAISES = """
import torch.distributed as dist
def work():
    if dist.get_rank() == 1: raise ValueError("only here")
work()
"""


def run(*words: object, cwd: Path, timeout: float = 110) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=timeout)


def torchbus_run(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run("-m", "torchbus", "run", "--devices", 2, "--accelerator", "cpu", *words, cwd=cwd)


@pytest.mark.slow
def test_an_unedited_script_of_another_folder_learns_the_same_on_two_ranks(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "beside.py").write_text("WIDTH = 3")
    own = ["model.lr=[1,2]", "--devices", 1, "--", "-m"]
    plain = run("../train.py", "../plain.pt", 8, "fork", "fork", *own, cwd=tmp_path / "elsewhere")
    ranks = torchbus_run(
        "../train.py", "../ranks.pt", 4, "spawn", "fork", *own, cwd=tmp_path / "elsewhere"
    )
    assert (plain.returncode, ranks.returncode) == (0, 0), plain.stderr + ranks.stderr
    assert (ranks.stdout, ranks.stderr) == (f"{[str(word) for word in own]}\n", "")
    torch.testing.assert_close(
        torch.load(tmp_path / "ranks.pt"), torch.load(tmp_path / "plain.pt"), rtol=1e-9, atol=0
    )


def test_a_module_by_the_console_script_with_the_lines_of_all_ranks(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "job.py").write_text(
        "import sys, torch.distributed as d; print(__spec__.name, d.get_rank(), sys.argv)"
    )
    script = Path(sys.executable).with_name("torchbus")
    if not script.exists():
        pytest.skip("torchbus is not installed in this environment")
    command = [
        script,
        "run",
        "--devices=2",
        "--accelerator=cpu",
        "--print-all-ranks",
        "-m",
        "app.job",
        "--x",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    expected = [f"[rank {rank}] app.job {rank} ['{tmp_path}/app/job.py', '--x']" for rank in (0, 1)]
    assert sorted(done.stdout.splitlines()) == expected


@pytest.mark.parametrize("launch", [pytest.param("script", marks=pytest.mark.slow), "fork"])
def test_the_exit_status_is_the_scripts(tmp_path: Path, launch: str) -> None:
    (tmp_path / "ends.py").write_text(
        "import sys, torch.distributed as d\nprint(d.get_world_size())\nsys.exit(3)"
    )
    done = torchbus_run("--launch", launch, "ends.py", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (3, "2\n", "")


def test_a_rank_that_raises_is_shown_by_its_script_alone(tmp_path: Path) -> None:
    (tmp_path / "raises.py").write_text(ONE_RAISES)
    done = torchbus_run("raises.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    *lines, last = done.stderr.splitlines()
    assert lines[0] == "[rank 1] Traceback (most recent call last):"
    assert lines[-1] == "[rank 1] ValueError: only here"
    assert re.findall(r'File "(.*)", line (\d+)', done.stderr) == [
        (f"{tmp_path}/raises.py", "5"),
        (f"{tmp_path}/raises.py", "4"),
    ]
    assert last == "torchbus.errors.RankFailed: rank 1 failed first: ValueError: only here"


def test_the_doctor_trains_on_two_ranks(tmp_path: Path) -> None:
    done = run("-m", "torchbus", "doctor", cwd=tmp_path)
    passed = r"self-test result passed, steps 20, difference to one process \S+, ms/step [\d.]+, seconds in all [\d.]+ nothing"
    assert re.search(passed, " ".join(done.stdout.split())), done.stdout
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "nothing is wrong")


@pytest.mark.slow
def test_a_self_test_that_takes_too_long_is_ended_with_its_ranks(tmp_path: Path) -> None:
    done = run("-m", "torchbus", "doctor", "--timeout", "3", cwd=tmp_path)
    if "result passed" in done.stdout:
        pytest.skip("this machine starts two ranks in less than 3 s")
    assert done.returncode == 1
    assert "two ranks did not train within 3 s" in done.stdout
    deadline = time.monotonic() + 20
    while _running_in(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert _running_in(tmp_path) == []


def _running_in(folder: Path) -> list[str]:
    """Processes whose working directory this is."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found += [process.name] if os.readlink(process / "cwd") == str(folder) else []
        except OSError:
            continue
    return found
