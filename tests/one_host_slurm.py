"""For tests: a SLURM of this host alone, from the programs of Debian's slurmd, slurmctld and munge.

It needs no service, and writes only to a folder of its own. All ends with the block.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchbus_testing.processes import stretched

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "sinfo")
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
STARTS_WITHIN_S = 60.0
CONFIGURATION = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
SchedulerType=sched/builtin
MpiDefault=none
PlugStackConfig=/dev/null
ReturnToService=2
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=8
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
"""


def need_slurm() -> None:
    """Skip the test if this host lacks a program."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if absent:
        pytest.skip(
            f"no {', '.join(absent)} here: apt-get install slurmd slurmctld slurm-client munge"
        )


@contextlib.contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """Start the cluster, and yield the variables with which ``srun`` and ``sbatch`` find it."""
    host = socket.gethostname().split(".")[0]
    (folder / "slurm.conf").write_text(
        CONFIGURATION.format(host=host, user=getpass.getuser(), folder=folder, ports=free_ports())
    )
    env = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": PATH}
    with contextlib.ExitStack() as stack:
        for command in commands(folder, host):
            stack.enter_context(daemon(command, os.environ | env, folder))
        wait_until_idle(os.environ | env, folder)
        yield env


def free_ports() -> list[int]:
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(2)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in found]


def commands(folder: Path, host: str) -> Iterator[list[str]]:
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "key").write_bytes(os.urandom(128))
    (folder / "key").chmod(0o600)
    files = {"key-file": "key", "seed-file": "seed"}
    files |= {name: f"munge.{name}" for name in ("socket", "pid-file", "log-file")}
    yield [
        "munged",
        "-F",
        "--force",
        *(f"--{name}={folder / file}" for name, file in files.items()),
    ]
    yield ["slurmctld", "-D", "-c"]
    yield ["slurmd", "-D", "-N", host]


@contextlib.contextmanager
def daemon(command: list[str], env: dict[str, str], folder: Path) -> Iterator[None]:
    with (folder / f"{command[0]}.out").open("wb") as out:
        process = subprocess.Popen(
            command,
            env=env,
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_idle(env: dict[str, str], folder: Path) -> None:
    deadline = time.monotonic() + stretched(STARTS_WITHIN_S)
    while "idle" not in _states(env):
        if time.monotonic() > deadline:
            logs = "\n".join(path.read_text()[-800:] for path in folder.glob("*.out"))
            raise TimeoutError(f"SLURM did not start within {STARTS_WITHIN_S:g} s: {logs}")
        time.sleep(0.2)


def _states(env: dict[str, str]) -> str:
    command = ["sinfo", "--noheader", "--format=%T"]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60).stdout
