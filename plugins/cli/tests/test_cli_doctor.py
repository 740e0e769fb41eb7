"""`torchbus doctor` in environments that are well, and in environments that are not."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SEEN = r"(RANK|WORLD_SIZE|LOCAL_\w+|MASTER_\w+|NODE_RANK|(SLURM|OMPI|PMI|TORCHBUS|GLOO|TORCHELASTIC)_\w+|OMP_NUM_THREADS)"
CLEAN = {name: value for name, value in os.environ.items() if not re.fullmatch(SEEN, name)}


def run(
    *words: str, before: tuple[str, ...] = (), **environ: str
) -> subprocess.CompletedProcess[str]:
    command = [*before, sys.executable, "-m", "torchbus", "doctor", *words]
    return subprocess.run(command, env=CLEAN | environ, capture_output=True, text=True, timeout=100)


def look(*words: str, before: tuple[str, ...] = (), **environ: str) -> tuple[int, dict[str, Any]]:
    """The exit status, and the findings by name."""
    done = run("--json", *words, before=before, **environ)
    report = json.loads(done.stdout)
    assert report["ok"] == (done.returncode == 0)
    return done.returncode, report["findings"]


def problems(findings: dict[str, Any]) -> dict[str, list[str]]:
    return {name: finding["problems"] for name, finding in findings.items() if finding["problems"]}


def test_nothing_is_wrong_here() -> None:
    status, findings = look(
        "--quick",
        MASTER_ADDR="127.0.0.1",
        SLURM_JOB_ID="7",
        OMP_NUM_THREADS="1",
        TORCHBUS_BACKEND="gloo",
    )
    assert problems(findings) == {}
    assert status == 0
    assert findings["launcher"]["facts"] == {"MASTER_ADDR": "127.0.0.1", "SLURM_JOB_ID": "7"}
    assert findings["settings"]["facts"] == {"OMP_NUM_THREADS": "1", "TORCHBUS_BACKEND": "gloo"}
    assert findings["python"]["facts"]["executable"] == sys.executable
    assert "gloo" in findings["backends"]["facts"]["built in"]
    assert findings["loopback"]["facts"] == {"TCP": "works"}
    assert (
        "torchbus-ddp" in findings["plugins"]["facts"] and "dp" not in findings["plugins"]["facts"]
    )
    assert "self-test" not in findings


def test_each_wrong_thing_is_named_with_a_remedy() -> None:
    status, findings = look(
        "--quick",
        RANK="1",
        WORLD_SIZE="2",
        MASTER_ADDR="no host",
        MASTER_PORT="99999",
        SLURM_PROCID="0",
        SLURM_STEP_ID="0",
        SLURM_NTASKS="4",
        OMPI_COMM_WORLD_RANK="5",
        OMPI_COMM_WORLD_SIZE="3",
        OMP_NUM_THREADS="many",
        TORCHBUS_BACKEND="carrier-pigeon",
        GLOO_SOCKET_IFNAME="nic9",
    )
    found = problems(findings)
    assert (status, list(found)) == (1, ["processors", "backends", "launcher", "settings"])
    assert "OMP_NUM_THREADS='many' is not a number of threads: unset it" in found["processors"][0]
    assert "TORCHBUS_BACKEND='carrier-pigeon' is not a backend" in found["backends"][0]
    assert "there is no interface nic9 here, only " in found["settings"][0]
    mpi, both, port, address = found["launcher"]
    assert mpi.startswith("OMPI_COMM_WORLD_RANK='5' is not a whole number from 0 to 2. Unset it")
    assert both.startswith(
        "launchers contradict each other: environment says rank 1 of 2; SLURM says rank 0 of 4."
    )
    assert port.startswith("MASTER_PORT='99999' is not a port: ")
    assert address.startswith("MASTER_ADDR='no host' is not known here")


def test_secrets_are_not_shown() -> None:
    secrets = {
        "TORCHBUS_API_KEY": "s1",
        "TORCHBUS_Token": "s2",
        "NCCL_SECRET_X": "s3",
        "GLOO_PASSWORD": "s4",
    }
    done = run("--quick", **secrets, TORCHBUS_URL="https://me:s5@host/path")
    assert not re.search(r"\bs[1-5]\b", done.stdout + done.stderr)
    assert all(f"{name} (hidden)" in " ".join(done.stdout.split()) for name in secrets)
    assert "https://me:(hidden)@host/path" in done.stdout


@pytest.mark.slow
def test_a_machine_without_loopback() -> None:
    namespace = (shutil.which("unshare") or "unshare", "--net")
    if (
        not shutil.which("unshare")
        or subprocess.run([*namespace, "true"], capture_output=True).returncode
    ):
        pytest.skip("network namespaces can't be made here")
    done = run("--quick", before=namespace)
    assert done.returncode == 1
    assert "loopback      TCP fails\n  WRONG       127.0.0.1 can't be reached" in done.stdout
    assert "ip link set lo up" in done.stdout
    assert done.stdout.endswith("see the lines marked WRONG\n")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A strategy ddp that starts ranks, and does nothing to keep them together."""
    (tmp_path / "loose_ddp.py").write_text("""
from torchbus.bus.base import hookimpl
class Loose:
    def __init__(self, backend): pass
    @hookimpl
    def launch(self, session): return session.start_ranks()
""")
    info = tmp_path / "torchbus_ddp-0.0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torchbus-ddp\nVersion: 0.0.1\nRequires-Dist: torchbus<0.0.2\n"
    )
    groups = {"torchbus": "ddp", "torchbus.strategy": "ddp", "torchbus.option": "backend"}
    (info / "entry_points.txt").write_text(
        "".join(f"[{group}]\n{name} = loose_ddp:Loose\n" for group, name in groups.items())
    )
    return tmp_path


@pytest.mark.slow
def test_ranks_that_learn_different_things_and_a_plugin_of_another_version(site: Path) -> None:
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    status, findings = look(PYTHONPATH=path, RANK="0", WORLD_SIZE="1")
    assert status == 1
    assert findings["self-test"]["facts"]["result"] == "failed"
    assert problems(findings)["self-test"][0].startswith(
        "two ranks learn different parameters than one process"
    )
    assert "torchbus-ddp 0.0.1 needs torchbus<0.0.2, and" in problems(findings)["plugins"][0]
