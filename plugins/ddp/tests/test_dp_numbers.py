"""dp on two ranks: the numbers of one process with the same batch, whatever the loss compares and
forward takes and returns.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchbus_testing.forking import fork_script

SCRIPTS = Path(__file__).parent / "scripts"

NUMBERS = SCRIPTS / "dp_numbers.py"

CASES = [
    "mlp",
    "checkpointed",
    "convolutional net",
    "transformer",
    "pairs of samples, a loss with a parameter",
    "noise of the loop",
    "gradient penalty",
    "nested inputs and outputs",
    "loss inside forward",
    "loss inside forward, divided",
    "gradients of gradients",
    "prototypes",
]


@pytest.fixture(scope="module")
def numbers() -> dict[str, Any]:
    return dict(fork_script(NUMBERS, timeout_s=110).json())


@pytest.mark.parametrize("case", CASES)
def test_the_numbers_of_one_process_with_the_same_batch(case, numbers):
    difference, ranks_agree, _ = numbers[case]
    assert difference < 1e-9 and ranks_agree


def test_the_work_is_divided(numbers):
    """After its first call a model sees half of the eight samples; one that returns a loss sees
    all, unless it is said to be a mean.
    """
    assert [
        numbers[case][2] for case in ("mlp", "loss inside forward", "loss inside forward, divided")
    ] == [4, 8, 4]


def test_numbers_that_forward_returns_are_those_of_the_whole_batch(numbers):
    assert max(numbers["numbers"]) < 1e-15
