"""GPUs that wait for the loader, and a slow rank: found, and named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchbus_gpu.diagnoses import Report, slow_rank
from torchbus_testing.forking import fork_script
from torchbus_testing.scripts import run_script

SCRIPTS = Path(__file__).parent / "scripts"

UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

LOOP = SCRIPTS / "slow_loader.py"
RANKS = """
import time
import torch
from torchbus import session

with session(strategy="ddp", devices=2, interval_s=0.1) as s:
    model = torch.nn.Linear(3, 1)
    for step in range(100):
        time.sleep(0.02 if s.rank == {slow} else 0.002)
        model(torch.ones(2, 3) * s.rank).sum().backward()
"""


@pytest.mark.parametrize(
    ("sample_s", "step_s", "busy", "found"),
    [
        (0.03, 0.001, 8, True),
        pytest.param(0.0, 0.05, 8, False, marks=pytest.mark.slow),
        pytest.param(0.03, 0.001, 97, False, marks=pytest.mark.slow),
    ],
)
def test_a_gpu_that_waits_for_the_loader(
    fake_nvml: dict[str, str],
    pretend_gpus: dict[str, str],
    sample_s: float,
    step_s: float,
    busy: int,
    found: bool,
) -> None:
    result = run_script(
        LOOP,
        sample_s,
        step_s,
        env=fake_nvml | pretend_gpus | {"FAKE_UTIL": str(busy)},
        timeout_s=110,
    )
    assert result.ok()
    warnings = [line for line in result.stderr.splitlines() if "Warning" in line]
    assert len(warnings) == found
    if found:
        assert (
            "the GPU (Fake A) was busy only 8 % of the last 1 s, while the loop waited for its DataLoader"
            in warnings[0]
        )
        number = 1 + LOOP.read_text().splitlines().index(
            "    for batch in DataLoader(Slow()):  # the line"
        )
        assert f"{LOOP.name}:{number}: UserWarning" in warnings[0]


@pytest.mark.parametrize("slow", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_slow_rank_is_named(slow: int) -> None:
    result = fork_script(RANKS.format(slow=slow), timeout_s=110)
    assert result.ok()
    assert (
        result.stderr.count(f"rank {slow} (cpu of ") == 1
        and f"rank {1 - slow} (cpu of" not in result.stderr
    )
    assert "ms of local work per step, where the others take" in result.stderr


def report(local_s: float, step_s: float = 1.0) -> Report:
    return Report("host", "cpu", local_s, step_s, 0.0)


def test_equal_ranks_are_not_slow() -> None:
    assert slow_rank([report(0.5), report(0.55), report(0.5)]) is None
    assert slow_rank([report(0.5), report(0.7), report(0.5)]) == 1
    assert slow_rank([report(0.01), report(0.05), report(0.01)]) is None  # a small part of the step


@UNHURRIED
@given(st.lists(st.floats(0.001, 10), min_size=2, max_size=9), st.randoms())
def test_it_is_the_slowest_rank_in_whatever_order(own: list[float], random: Any) -> None:
    found = slow_rank([report(local_s) for local_s in own])
    order = list(range(len(own)))
    random.shuffle(order)
    moved = slow_rank([report(own[index]) for index in order])
    assert (found is None) == (moved is None)
    if found is not None and moved is not None:
        assert own[found] == own[order[moved]] == max(own)
