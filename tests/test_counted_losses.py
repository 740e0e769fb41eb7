"""Losses that are means over tokens, weights of classes or elements behind a mask: N ranks and windows give what one big batch gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torchbus.testing import fork_script

SLOW = pytest.mark.slow
SCRIPT = Path(__file__).parent / "scripts" / "counted_losses.py"
UNDER_FSDP = [
    "ignored", "class weights", "smoothed", "masked mean", "max(mask.sum(), 1)", "several terms", "sum over a constant", "over what all ranks have",
]  # fmt: skip


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "asked",
    [
        pytest.param({"strategy": "ddp", "devices": 2, "others": True}, id="ddp"),
        pytest.param({"strategy": "ddp", "devices": 3}, id="ddp, 3 ranks", marks=SLOW),
        pytest.param({"strategy": "ddp", "devices": 2, "batch": "global"}, id="ddp, batch=global", marks=SLOW),
        pytest.param({"strategy": "ddp", "devices": 3, "batch": "global"}, id="ddp, 3 ranks, batch=global", marks=SLOW),
        pytest.param({"strategy": "ddp", "devices": 2, "window": 3}, id="ddp, windows"),
        # Left out: what is compared there is the mean over one window, where a ragged batch has another constant (tests/test_constant_divisors.py).
        pytest.param({"strategy": "ddp", "devices": 3, "window": 3, "but": ["sum over a constant"]}, id="ddp, 3 ranks, windows", marks=SLOW),
        pytest.param({"strategy": "fsdp", "devices": 2, "cases": UNDER_FSDP}, id="fsdp", marks=SLOW),
        pytest.param({"strategy": "fsdp", "devices": 2, "window": 3, "cases": UNDER_FSDP, "others": True}, id="fsdp, windows"),
        pytest.param({"strategy": "fsdp", "devices": 3, "cases": UNDER_FSDP}, id="fsdp, 3 ranks", marks=SLOW),
        pytest.param({"strategy": "ddp_sharded", "devices": 2, "window": 3}, id="ddp_sharded, windows", marks=SLOW),
        pytest.param({"strategy": "dp", "devices": 2, "but": ["mask.sum()"]}, id="dp", marks=SLOW),
        pytest.param({"strategy": "dp", "devices": 2, "window": 3, "cases": ["ignored", "mean"]}, id="dp, windows", marks=SLOW),
    ],
)
def test_ranks_and_windows_equal_the_big_batch(asked: dict[str, Any]) -> None:
    found = fork_script(SCRIPT, json.dumps(asked), timeout_s=280).json()
    apart = {name: differences for name, differences in found.items() if not max(differences) < 1e-12}
    assert not apart and len(found) > 1


def test_samples_may_be_said_to_count() -> None:
    """What the graph tells matters: without it the same loop is off."""
    asked = {"strategy": "ddp", "devices": 2, "cases": ["ignored", "mean"], "loss_weight": "samples"}
    found = fork_script(SCRIPT, json.dumps(asked)).json()
    assert found["ignored"][0] > 1e-3 and found["mean"][0] < 1e-12
