"""Trackers whose disk is full for a while: what they lose is counted, and what comes after it is
there. The real clients, on a real disk.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from torchbus_testing.environments import small_disk
from torchbus_testing.scripts import run, run_script

SCRIPTS = Path(__file__).parent / "scripts"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SCRIPT = SCRIPTS / "full_disks.py"


def wandb_steps(folder: Path) -> list[int]:
    (found,) = folder.glob("wandb/offline-run-*")
    inspected = run(
        [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(found)], timeout_s=300
    )
    told = [json.loads(line) for line in inspected.stdout.splitlines()]
    return [
        record["history"]["item"]["step"]
        for record in told
        if record["type"] == "history" and "loss" in record["history"]["item"]
    ]


def neptune_steps(folder: Path) -> list[int]:
    text = "".join(path.read_text() for path in folder.glob(".neptune/offline/*/data-*.log"))
    return [
        round(float(step)) for step in re.findall(r'"step": ([\d.]+)', text.split('"loss"', 1)[1])
    ][:105]


@pytest.mark.parametrize(("tracker", "steps"), [("wandb", wandb_steps), ("neptune", neptune_steps)])
def test_what_comes_after_the_gap_is_there(tmp_path, tracker, steps):
    with small_disk(tmp_path / "disk", 8192) as disk:
        if disk is None:
            pytest.skip("a small disk can't be mounted here")
        result = run_script(
            SCRIPT,
            tracker,
            cwd=disk.path,
            env={"WANDB_MODE": None, "NEPTUNE_MODE": None},
            timeout_s=300,
        )
        assert result.ok() and "trained" in result.stdout, result.stderr
        assert (
            f"{tracker}: 100 of 205 calls failed (the first: NoDiskRoom: [Errno 28] No space left on device: "
            in result.stderr
        )
        assert steps(disk.path) == [*range(5), *range(105, 205)]
