"""Real launchers around a plain loop: the parameters equal those of our own launch digit for digit,
also where a rank is killed, or the scheduler stops the job and starts it again.

Programs that are not installed are skipped; test_ways_in.py has the variables of each launcher.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launched_by import ONE_THREAD, check, checkpoints, our_own, words
from one_host_slurm import need_slurm, slurm

from torchbus_testing.scripts import run

PAGE = Path(__file__).parents[2] / "docs" / "scaling.md"
pytestmark = pytest.mark.timeout(900)

TORCHRUN = [
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--nproc-per-node",
    "2",
    "--max-restarts",
    "2",
]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    return our_own(tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    need_slurm()
    with slurm(tmp_path_factory.mktemp("slurm")) as env:
        yield env


def test_srun(cluster, tmp_path, expected):
    run(["srun", "--ntasks=2", *words(tmp_path)], env=cluster | ONE_THREAD, timeout_s=400).ok()
    check(tmp_path, expected, "SLURM")


@pytest.mark.slow
def test_mpirun(tmp_path, expected):
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun here: apt-get install openmpi-bin")
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"]
    run([*mpirun, *words(tmp_path)], env=ONE_THREAD, timeout_s=400).ok()
    check(tmp_path, expected, "MPI")


@pytest.mark.slow
def test_torchrun_starts_a_killed_rank_again(tmp_path, expected):
    """In float64 the run that goes on from the checkpoint is the undisturbed one, bit for bit."""
    env = ONE_THREAD | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    loop = words(tmp_path, checkpoints(tmp_path), "kill")[1:]
    run([sys.executable, *TORCHRUN, *loop], env=env, timeout_s=400).ok()
    check(tmp_path, expected, "torchrun")
    assert (tmp_path / "kill False").exists()
    assert "resumed from" in (tmp_path / "explained").read_text()


# The batch file of the page -----------------------------------------------------------------------


def batch_file(command: list[str], **lines: str) -> str:
    """The page's batch file, without its GPUs, and with other values in some of its lines."""
    (text,) = re.findall(r"```sh\n(#!/bin/bash\n#SBATCH.*?)```", PAGE.read_text(), re.DOTALL)
    text = re.sub(r"#SBATCH --gpus.*\n", "", text)
    for option, value in lines.items():
        text, found = re.subn(rf"(#SBATCH --{option}=).*", rf"\g<1>{value}", text)
        assert found == 1, option
    assert text.count("python train.py") == 1
    return text.replace("python train.py", " ".join(f"'{word}'" for word in command))


@pytest.mark.slow
def test_the_batch_file_is_requeued_before_its_time_limit(cluster, tmp_path, expected):
    """SLURM sends SIGUSR1 two minutes before the limit, here after two or three."""
    command = words(tmp_path, checkpoints(tmp_path, every_n_steps=1000), "slow")
    lines = {"nodes": "1", "ntasks-per-node": "2", "time": "00:05:00"}
    (tmp_path / "train.sbatch").write_text(batch_file(command, **lines))
    env = os.environ | cluster | ONE_THREAD
    submit = ["sbatch", "--parsable", "--open-mode=append", "train.sbatch"]
    number = subprocess.run(
        submit, cwd=tmp_path, env=env, check=True, capture_output=True, text=True
    ).stdout.strip()
    told = wait_for_end(number, env, tmp_path / f"slurm-{number}.out")
    check(tmp_path, expected, "SLURM")
    assert "as asked, and leaving with exit status 138" in told
    assert "resumed from" in (tmp_path / "explained").read_text()


def wait_for_end(job: str, env: dict[str, str], out: Path) -> str:
    """Wait until the job has ended well, and return what it wrote."""
    deadline = time.monotonic() + 800
    while "JobState=COMPLETED" not in (state := _shown(job, env)):
        told = out.read_text() if out.exists() else ""
        assert "JobState=FAILED" not in state and time.monotonic() < deadline, state + told
        time.sleep(1.0)
    assert re.search(r"Restarts=[1-9]", state), state
    return out.read_text()


def _shown(job: str, env: dict[str, str]) -> str:
    command = ["scontrol", "show", "job", job]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout
