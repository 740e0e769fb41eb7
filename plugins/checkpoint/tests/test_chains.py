"""Interrupted again and again, in any epochs: the end is that of the loop alone."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torchbus import session

from torchbus_checkpoint.disk import folder

from .cut_training import Clock, Cut, seed
from .loops_of_epochs import LOOPS, Epochs

pytestmark = pytest.mark.timeout(900)
# steps (and batches of evaluation) of each run, until it is cut
CHAINS = st.lists(st.integers(1, 12), max_size=10)
EVERY = st.integers(1, 4)


@cache
def alone(number: int) -> list[torch.Tensor]:
    seed()
    return list(LOOPS[number](range, Clock()))


def run(number: int, place: Path, every: int, by_epochs: bool, cut: int = -1) -> Any:
    """None if it was cut off."""
    seed(12345 if folder.found(place) else 0)
    try:
        with session(checkpoint=place, every_n_steps=every) as s:
            epochs: Epochs = s.epochs if by_epochs else range
            return LOOPS[number](epochs, Clock(cut))
    except Cut:
        return None


def check(number: int, cuts: list[int], every: int, by_epochs: bool) -> None:
    with tempfile.TemporaryDirectory() as place:
        for cut in [*cuts, -1]:
            resumed = run(number, Path(place), every, by_epochs, cut)
            if resumed is not None:
                break
        whole = alone(number)
        assert [torch.equal(one, other) for one, other in zip(resumed, whole, strict=True)] == [
            True
        ] * len(whole)


@pytest.mark.parametrize(
    "by_epochs", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["range", "epochs"]
)
@pytest.mark.parametrize("number", range(len(LOOPS)), ids=[loop.__name__ for loop in LOOPS])
def test_the_end_is_that_of_the_loop_alone(number: int, by_epochs: bool) -> None:
    check(number, [7, 7, 7], 1, by_epochs)


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, len(LOOPS) - 1), CHAINS, EVERY, st.booleans())
def test_any_chain(number: int, cuts: list[int], every: int, by_epochs: bool) -> None:
    check(number, cuts, every, by_epochs)
