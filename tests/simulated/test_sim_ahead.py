"""Batches are copied to the device one ahead, on a stream of their own, and nothing else changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import torchbus_simulator as accelerator
from torchbus_testing.forking import fork_script

SCRIPT = Path(__file__).parent / "scripts" / "sim_ahead.py"
REASON = accelerator.missing()
pytestmark = [
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
    pytest.mark.timeout(400),
]


@pytest.mark.parametrize("prefetch", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_batches_ahead_change_no_number(prefetch: int) -> None:
    result = fork_script(SCRIPT, prefetch, timeout_s=380)
    assert result.ok(), result
    exact, told, nested, device, samples, failed = result.stdout.splitlines()
    assert (exact, nested) == ("True", "True")
    assert (device, samples) == ("sim:0 words", "24")
    assert failed == "True ['end 0', 'end 1']"
    order = json.loads(told)
    ahead = [order.index(f"copy {k + 1}") < order.index(f"end {k}") for k in range(5)]
    assert any(ahead) if prefetch else not any(ahead)
