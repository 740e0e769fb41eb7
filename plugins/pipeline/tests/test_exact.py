"""The numbers of one process: losses, norms, parameters and optimizer states, by each schedule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from torchbus_testing.forking import fork_script

EXACT = Path(__file__).parent / "scripts" / "exact.py"
WAYS = EXACT.parent / "ways.py"
SPARSE = EXACT.parent / "sparse.py"
BOUND = 1e-10  # Adam enlarges the rounding of gradients that are zero but for that

RUNS = [
    pytest.param(2, {}, id="gpipe, 2 ranks"),
    pytest.param(3, {"schedule": "1f1b", "microbatches": 3}, id="1f1b, 3 ranks"),
    pytest.param(3, {}, id="gpipe, 3 ranks", marks=pytest.mark.slow),
    pytest.param(2, {"schedule": "1f1b"}, id="1f1b, 2 ranks", marks=pytest.mark.slow),
    pytest.param(2, {"schedule": "interleaved"}, id="interleaved", marks=pytest.mark.slow),
    pytest.param(2, {"balance": "time"}, id="by time", marks=pytest.mark.slow),
]
OF_PARTS = ("sum over samples", "pairs of samples", "noise of the loop")


def run(script: Path, ranks: int, options: dict[str, Any]) -> dict[str, Any]:
    result = fork_script(script, str(ranks), json.dumps(options), timeout_s=200)
    return dict(result.json())


@pytest.mark.parametrize(("ranks", "options"), RUNS)
def test_the_numbers_of_one_process(ranks, options):
    found = run(EXACT, ranks, options)
    assert len(found) == 10
    assert {name: one for name, one in found.items() if one[0] > BOUND or not one[1]} == {}


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_two_pipelines_of_two_stages_divide_the_data(schedule):
    """A pipeline has its share of the data, so a loss between samples sees only those."""
    options = {"stages": 2, "batch": "global", "schedule": schedule, "microbatches": 2}
    found = run(EXACT, 4, options)
    wrong = {name: one for name, one in found.items() if one[0] > BOUND or not one[1]}
    assert {*wrong} == {*OF_PARTS}


def test_two_pipelines_average_sparse_gradients():
    assert run(SPARSE, 4, {})["table"][0] < BOUND


@pytest.mark.parametrize("schedule", [pytest.param("gpipe", marks=pytest.mark.slow), "1f1b"])
def test_what_a_loop_does_besides(schedule):
    found = run(WAYS, 2, {"schedule": schedule})
    order = found.pop("order")
    missing, types, after = (found.pop(key) for key in ("missing", "types", "after the block"))
    assert {name: one for name, one in found.items() if one[0] > BOUND or not one[1]} == {}
    assert missing == [4, 2] and types == ["Parameter"] and after == 0.0
    in_turns = ["FFFFBBBBFFBFBFBB", "FFFFBBBBFBFBFBFB"]
    assert order == (in_turns if schedule == "1f1b" else ["FFFFBBBBFFFFBBBB"] * 2)
