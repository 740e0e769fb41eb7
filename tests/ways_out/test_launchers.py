"""Ranks that a real mpirun or a real SLURM has started, where these are installed: a rank that is
lost or frozen is named, and all of them end.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from one_host_slurm import need_slurm, slurm

from torchbus_testing.scripts import Result, run

SCRIPT = Path(__file__).parent / "scripts" / "frozen.py"
LAUNCHERS = {
    "mpirun": ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"],
    "srun": ["srun", "--ntasks=2", "--overcommit", "--kill-on-bad-exit=0", "--wait=60"],
}
LOST = "failed first: its process has gone without a message: SIGKILL killed it"
FROZEN = "no sign of life for 3 s (freeze_timeout): its process "
STORE = "rank 0 (or torchrun), which serves the store, has not answered for 3 s: its process "
WAYS = [
    ("SIGKILL", 0, LOST),
    ("SIGKILL", 1, LOST),
    ("SIGHUP", 1, "failed first: it received SIGHUP"),
    ("SIGSTOP", 0, STORE),
    ("SIGSTOP", 1, FROZEN),
    ("lock", 0, FROZEN),
    ("lock", 1, FROZEN),
]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]


@dataclass(frozen=True)
class Launcher:
    command: list[str]
    env: dict[str, str]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    need_slurm()
    with slurm(tmp_path_factory.mktemp("slurm")) as env:
        yield env


@pytest.fixture(params=LAUNCHERS)
def launcher(request: pytest.FixtureRequest) -> Launcher:
    if request.param == "srun":
        return Launcher(LAUNCHERS["srun"], request.getfixturevalue("cluster"))
    found = shutil.which(
        request.param, path=os.pathsep.join([os.environ["PATH"], str(Path(sys.executable).parent)])
    )
    if found is None:
        pytest.skip(f"no {request.param} here: apt-get install openmpi-bin")
    return Launcher([found, *LAUNCHERS[request.param][1:]], {})


def launch(launcher: Launcher, folder: Path, who: int, how: str) -> Result:
    loop = [sys.executable, str(SCRIPT), "any", "2", str(who), how, "3", str(folder)]
    return run([*launcher.command, *loop], env=launcher.env, timeout_s=400)


@pytest.mark.parametrize(("how", "who", "told"), WAYS)
def test_a_rank_that_is_lost(launcher, tmp_path, how, who, told):
    result = launch(launcher, tmp_path, who, how)
    assert result.status not in (0, 124) and not result.orphans, result
    assert told in result.stderr, result.stderr
    assert (
        f"rank {who} failed first: " in result.stderr
        or f"rank {who} is ended by rank {1 - who}: " in result.stderr
    ), result.stderr
    left = {0, 1} if how == "SIGHUP" else {1 - who}
    assert {path.name for path in tmp_path.glob("finally*")} == {f"finally{rank}" for rank in left}


def test_all_well(launcher, tmp_path):
    assert launch(launcher, tmp_path, -1, "sleep").ok().stdout == "done\n" * 2
