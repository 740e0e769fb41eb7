"""A script that opens its trackers itself has one run, as in one process, before the block and
inside.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from torchbus_testing.scripts import run, run_script, write_script

SCRIPT = """
import glob, os, sys
from torchbus import session

os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true")

def opened():
    import neptune, wandb
    from torch.utils.tensorboard import SummaryWriter
    return SummaryWriter("runs"), wandb.init(project="p"), neptune.init_run(mode="offline", project="a/b")

def log(writer, wandb, neptune):
    writer.add_scalar("loss", 1.0, 0)
    wandb.log({"loss": 1.0})
    neptune["loss"].append(1.0)
    writer.close(), wandb.finish(), neptune.stop()

runs = opened() if "before" in sys.argv else None
with session(strategy="ddp", devices=2, accelerator="cpu") as s:
    log(*(runs or opened()))
    s.barrier()
print("RUNS", *[len(glob.glob(f)) for f in ("runs/*", "wandb/offline-run*", ".neptune/offline/*")])
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("where", ["before", "inside"])
def test_own_trackers_have_one_run(tmp_path: Path, where: str) -> None:
    for client in ("neptune", "wandb", "tensorboard"):
        pytest.importorskip(client)
    script = write_script(tmp_path, SCRIPT)
    result = run_script(script, where, cwd=tmp_path, timeout_s=200.0).ok()
    assert "RUNS 1 1 1" in result.stdout
    assert "torchbus: rank 0" not in result.stderr


@pytest.mark.timeout(300)
def test_own_trackers_under_the_command_have_one_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    script = write_script(
        tmp_path,
        """
        from torch.utils.tensorboard import SummaryWriter
        writer = SummaryWriter("runs")
        writer.add_scalar("loss", 1.0, 0)
        writer.close()
        """,
    )
    command = [sys.executable, "-m", "torchbus", "run", "--devices", "2", "--accelerator", "cpu"]
    run([*command, str(script)], cwd=tmp_path, timeout_s=200.0).ok()
    assert len(list((tmp_path / "runs").iterdir())) == 1
