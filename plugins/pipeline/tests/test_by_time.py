"""``balance="time"``: rank 0 measures the layers at the model's first call."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from torchbus_testing.forking import fork_script

SCRIPT = Path(__file__).parent / "scripts" / "by_time.py"


@pytest.fixture(scope="module")
def found():
    return fork_script(SCRIPT, timeout_s=100).json()


def test_the_slowest_layer_has_a_stage_of_its_own_on_all_ranks(found):
    before, after = zip(*found["by time"], strict=True)
    assert all(
        "divided at its first call, by the time that its layers take" in one for one in before
    )
    assert all("cut into 2 stages, with 1, 4 layers (by time: they took 1" in one for one in after)
    times = {re.search(r"they took (.*) ms on rank 0", one)[1] for one in after}
    assert len(times) == 1 and len(times.pop().split(", ")) == 5


def test_a_model_that_can_not_be_copied_is_divided_by_parameters(found):
    for _, text in found["held"]:
        assert "with 3, 2 layers (by parameters, because their time could not be measured:" in text
        assert "cannot pickle '_thread.lock' object" in text


def test_measuring_draws_no_random_numbers(found):
    assert found["noise"] == 0.0


def test_what_can_not_be_divided_at_its_first_call_is_refused(found):
    assert "a model is copied or pickled before its first call" in found["copied"]
    assert "Sequential was not called before this backward" in found["by a layer"]
