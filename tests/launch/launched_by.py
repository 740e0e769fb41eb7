"""For the tests of launchers: what the loop of launched.py reaches, and how to compare with it."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import torch

from torchbus_testing.scripts import run

SCRIPT = Path(__file__).parent / "scripts" / "launched.py"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def words(folder: Path, options: dict[str, Any] | None = None, trouble: str = "") -> list[str]:
    return [sys.executable, str(SCRIPT), str(folder), json.dumps(options or {}), trouble]


def checkpoints(folder: Path, **more: Any) -> dict[str, Any]:
    return {"checkpoint": str(folder / "checkpoints"), "every_n_steps": 2, **more}


def result(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def our_own(folder: Path) -> list[float]:
    """Return the parameters that our own launch of two ranks reaches, close to one process's."""
    run(words(folder, {"devices": 2, "launch": "fork"}), env=ONE_THREAD, timeout_s=400).ok()
    parameters: list[float] = result(folder)["parameters"]
    loop = runpy.run_path(str(SCRIPT), run_name="launched")
    alone = loop["train"](2 * loop["BATCH_SIZE"])
    torch.testing.assert_close(*map(torch.tensor, (parameters, alone)), rtol=0, atol=1e-12)
    return parameters


def check(folder: Path, expected: list[float], by: str) -> None:
    """The two ranks that this launcher has started reached these parameters, digit for digit."""
    found = result(folder)
    assert (found["ranks"], found["by"], found["parameters"]) == (2, by, expected)
