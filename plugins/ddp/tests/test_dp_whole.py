"""dp with a forward that can't be divided along its inputs' rows, or that returns several rows for each
sample.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from torchbus_testing.forking import fork_script

SCRIPT = Path(__file__).parent / "scripts" / "dp_whole.py"


def flat(value: object) -> list[float]:
    return [one for part in value for one in flat(part)] if isinstance(value, list) else [value]  # type: ignore[list-item]


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_numbers_are_those_of_one_process(ranks: int) -> None:
    (alone, _), (found, warned) = (fork_script(SCRIPT, str(one)).json() for one in (1, ranks))
    assert {case: flat(one) for case, one in found.items()} == {
        case: pytest.approx(flat(one), rel=1e-9) for case, one in alone.items()
    }
    (told,) = warned
    assert "Whole.forward fails for " in told and " of the 8 rows" in told
    assert told.endswith("If the batch is in another dimension, pass batch_dim=")
