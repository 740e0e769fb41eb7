"""Accumulated gradients against those of the one big batch: batches, windows, ragged ends and
weights as they are drawn.

The ranks are real processes. Starting them takes longer than a case does, so that each draw is of
many cases, and a job runs them all: one epoch for each.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from torchbus_testing.forking import fork_script

SCRIPT = Path(__file__).parent / "scripts" / "windows_of_ranks.py"
NUMBERS = st.floats(-2.0, 2.0, width=16)
JOBS = 2  # the first draw is of nothing but the simplest case
CASES = 30


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    rows = draw(
        st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS, st.integers(0, 4)), min_size=1, max_size=30)
    )
    data = ([row[:2] for row in rows], [row[2] for row in rows], [row[3] for row in rows])
    return {
        "data": data,
        "batch": draw(st.integers(1, 4)),
        "window": draw(st.integers(1, 5)),
        "counted": draw(st.booleans()),
    }


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "ranks", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)]
)
def test_every_step_has_the_gradient_of_the_big_batch(ranks: int) -> None:
    @settings(
        max_examples=JOBS,
        phases=[Phase.generate],
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(cases(), min_size=CASES, max_size=CASES))
    def check(drawn: list[dict[str, Any]]) -> None:
        result = fork_script(SCRIPT, ranks, json.dumps(drawn), timeout_s=120)
        assert result.ok()
        for case, found in zip(drawn, json.loads(result.stdout), strict=True):
            expected = of_big_batches(case, case["batch"] * ranks * case["window"])
            assert len(found) == len(expected), case
            assert all(apart(*pair) <= 1e-6 for pair in zip(found, expected, strict=True)), (
                case,
                found,
                expected,
            )

    check()


def of_big_batches(case: dict[str, Any], size: int) -> list[list[float]]:
    """The gradient of a mean of squares over each ``size`` samples, of weights 0.5 and a bias of
    0.25, on paper.
    """
    rows = list(zip(*case["data"], strict=True))
    return [
        gradient(rows[start : start + size], case["counted"]) for start in range(0, len(rows), size)
    ]


def gradient(rows: list[Any], counted: bool) -> list[float]:
    weights = [count if counted else 1 for _, _, count in rows]
    errors = [0.5 * (x[0] + x[1]) + 0.25 - y for x, y, _ in rows]
    terms = [
        (2 * weight * error * a, 2 * weight * error * b, 2 * weight * error)
        for weight, error, (a, b) in zip(weights, errors, (x for x, _, _ in rows), strict=True)
    ]
    return [sum(column) / max(sum(weights), 1) for column in zip(*terms, strict=True)]


def apart(found: list[float], expected: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(found, expected, strict=True)) / max(
        1.0, *map(abs, expected)
    )
