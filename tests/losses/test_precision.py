"""Accumulation, clipping, mixed precision and toggling, each alone, in pairs and all at once, with
every kind of optimizer, on one and two ranks.

The reference is written by hand and runs in a process that knows nothing of torchbus. On one rank
it is met bit for bit, but for the two loops whose reference adds in another order. On two ranks,
float64 is held to 1e-9 of the largest value, float16 to 1e-3 and bfloat16 to 8e-3, their own
rounding: the ranks' sums are rounded apart from each other's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from torchbus_testing.forking import fork_script
from torchbus_testing.scripts import run_script

SCRIPTS = Path(__file__).parent / "scripts"
OTHER_ORDER = ("gan", "tokens", "sparse")


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    result = run_script(SCRIPTS / "precision.py", env={"OMP_NUM_THREADS": "1"}, timeout_s=110)
    assert result.ok()
    return json.loads(result.stdout)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("ranks", "every"),
    [
        pytest.param(1, 1, marks=pytest.mark.slow),
        pytest.param(2, 1, marks=pytest.mark.slow),
        (2, 8),
    ],
)
def test_equals_the_loop_written_by_hand(expected: dict[str, Any], ranks: int, every: int) -> None:
    """``every``: one of so many of the loops that anybody writes."""
    result = run_script(
        SCRIPTS / "precision_sessions.py", ranks, every, env={"OMP_NUM_THREADS": "1"}, timeout_s=250
    )
    assert result.ok()
    found = json.loads(result.stdout)
    counted, toggled = found.pop("collectives", None), found.pop("toggled", None)
    left_out = expected[str(ranks)].keys() - found.keys()
    assert found.keys() <= expected[str(ranks)].keys() and bool(left_out) == (every > 1)
    wrong = {name: apart(found[name], expected[str(ranks)][name]) for name in found}
    assert {name: error for name, error in wrong.items() if error > tolerance(name, ranks)} == {}
    if counted:
        every_batch, windows = counted
        assert min(every_batch) > 0
        assert windows[4:7] == [0, 0, 0], "nothing is communicated in the middle of a window"
        assert windows[7] == every_batch[7]
        assert [count > 0 for count in toggled] == [True, False, True], (
            "toggle(..., sync_grad=False) communicates nothing"
        )


@pytest.mark.parametrize("bits", ["16", "bf16"])
def test_dp_that_had_no_16_bits(expected: dict[str, Any], dp: list[Any], bits: str) -> None:
    found, rows = dp
    assert rows == [2, 3, 6], "half of six samples, half of the last four; the first call is whole"
    assert apart(found[bits], expected["2"][bits]) < tolerance(bits, 2)


@pytest.fixture(scope="module")
def dp() -> list[Any]:
    return list(fork_script(SCRIPTS / "precision_dp.py", timeout_s=110).json())


def apart(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True)) / max(map(abs, other))


def tolerance(name: str, ranks: int) -> float:
    if ranks == 1:
        return 1e-12 if name in OTHER_ORDER else 0.0
    return {"16": 1e-3, "bf16": 8e-3}.get(name.split()[0], 1e-9)
