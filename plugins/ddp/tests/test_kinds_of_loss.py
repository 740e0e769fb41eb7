"""Losses of many kinds give the numbers of one process, without an option and without a word."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchbus_testing.forking import fork_script

SCRIPT = Path(__file__).parent / "scripts" / "kinds_of_loss.py"


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_numbers_are_those_of_one_process(ranks: int) -> None:
    apart = json.loads(fork_script(SCRIPT, ranks).ok().stdout)
    assert {name: value for name, value in apart.items() if not value < 1e-10} == {}
