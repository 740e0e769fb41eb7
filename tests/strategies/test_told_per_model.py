"""What ranks tell each other as Python objects does not grow with the model, nor in number with
the ranks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchbus_testing.forking import fork_script

SCRIPT = Path(__file__).parent / "scripts" / "told_per_model.py"


def told(ranks: int) -> Any:
    return fork_script(SCRIPT, ranks).json()


def test_objects_are_as_small_and_as_few_for_a_large_model_and_for_more_ranks() -> None:
    """The largest are the states of rank 0's random generators, at the start and once it trains."""
    (calls, size), (calls_of_large, size_of_large) = told(2)
    assert calls == calls_of_large == told(3)[0][0] and size < 30_000
    assert size_of_large - size < 100
