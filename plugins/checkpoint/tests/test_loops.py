"""Loops of many kinds, interrupted by an exception at every few steps and begun again: the end is
that of the loop alone.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from torchbus import session

from torchbus_checkpoint.disk import folder
from torchbus_testing.state import assert_torch_unchanged, torch_state

from .cut_training import Alone, Clock, Cut, seed
from .kinds_of_loops import LOOPS, Loop

pytestmark = pytest.mark.timeout(900)


@pytest.mark.share(3)
@pytest.mark.parametrize(
    "loop",
    [
        pytest.param(loop, id=loop.__name__, marks=pytest.mark.slow if number % 4 else [])
        for number, loop in enumerate(LOOPS)
    ],
)
def test_the_end_is_that_of_the_loop_alone(loop: Loop, tmp_path: Path) -> None:
    before = torch_state()
    seed()
    whole = loop(Alone(), Clock())
    for cut in itertools.count(1, 4):
        if not interrupt(loop, cut, tmp_path / str(cut)):
            break
        seed(12345 if folder.found(tmp_path / str(cut)) else 0)
        with session(checkpoint=tmp_path / str(cut), every_n_steps=2) as s:
            resumed = loop(s, Clock())
        assert [torch.equal(a, b) for a, b in zip(resumed, whole, strict=True)] == [True] * len(
            whole
        ), f"cut after {cut}"
    assert cut > 9
    assert_torch_unchanged(before)


def interrupt(loop: Loop, cut: int, place: Path) -> bool:
    """False if the loop was over before."""
    seed()
    try:
        with session(checkpoint=place, every_n_steps=2) as s:
            loop(s, Clock(cut))
    except Cut:
        return True
    return False
