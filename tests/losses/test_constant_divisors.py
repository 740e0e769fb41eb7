"""Sums over a constant, over each rank's samples or over those of all ranks, in windows and at the
ragged end: every step has the gradient of one process. So have means over a mask, in windows of one
batch too.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchbus_testing.forking import fork_script

SCRIPTS = Path(__file__).parent / "scripts"

SCRIPT = SCRIPTS / "constant_divisors.py"
EPOCHS = [[26, 1], [26, 3], [28, 1], [20, 2], [18, 2]]  # samples, window
TWO = {"strategy": "ddp", "devices": 2, "epochs": EPOCHS}
CASES = {
    "one process": {"devices": 1, "epochs": [[14, 3], [13, 1], [26, 3], [20, 2]]},
    "each rank's": TWO,
    "all ranks', in windows": TWO | {"batch": "global", "epochs": [[24, 3], *EPOCHS]},
    "each rank's, fsdp": TWO | {"strategy": "fsdp"},
    "all ranks', in windows, fsdp": TWO
    | {"strategy": "fsdp", "batch": "global", "epochs": [[24, 3], *EPOCHS]},
}


@pytest.mark.share(2)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if "fsdp" in name else name for name in CASES],
)
def test_every_step_has_the_gradient_of_one_process(name: str) -> None:
    found = fork_script(SCRIPT, json.dumps(CASES[name]), timeout_s=110).json()
    assert len(found) == 2 and max(found.values()) < 1e-12, found
