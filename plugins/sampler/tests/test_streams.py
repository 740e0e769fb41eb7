"""Iterable datasets that shuffle with the process's random numbers, or by an epoch of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchbus_testing.forking import fork_script

SCRIPT = Path(__file__).parent / "scripts" / "shuffled_streams.py"


@pytest.mark.parametrize(
    ("workers", "words"),
    [
        (0, ["noise"]),
        (1, ["noise"]),
        pytest.param(0, [], marks=pytest.mark.slow),
        pytest.param(2, [], marks=pytest.mark.slow),
        pytest.param(1, ["persistent"], marks=pytest.mark.slow),
    ],
)
def test_the_ranks_see_each_sample_once_in_the_order_of_one_process(workers, words):
    """``noise``: each rank draws numbers of its own while it trains."""
    result = fork_script(SCRIPT, workers, *words).ok()
    assert result.stdout.count("right") == 8 and "wrong" not in result.stdout, result.stdout
