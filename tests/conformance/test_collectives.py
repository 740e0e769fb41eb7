"""In a steady step the ranks communicate as often as in the same loop by hand.

By hand, the loop reduces its loss in a collective of its own; a session gives it the global loss.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from torchbus_testing.forking import fork_script

SCRIPT = Path(__file__).parent / "scripts" / "collectives.py"


@pytest.mark.parametrize(
    ("ranks", "names"),
    [
        (2, ["ddp", "fsdp"]),
        pytest.param(2, ["ddp_sharded"], marks=pytest.mark.slow),
        pytest.param(4, ["fsdp x tp"], marks=pytest.mark.slow),
    ],
)
def test_no_collective_more_than_by_hand(ranks: int, names: list[str]) -> None:
    found = fork_script(SCRIPT, ranks, *names, timeout_s=115).json()
    assert [*found] == names
    assert all(0 < in_session <= by_hand for by_hand, in_session in found.values()), found


@pytest.mark.slow
def test_tensor_parallel_ranks_also_average_what_they_all_have() -> None:
    """Two steps: one collective in each, with the gradients of undivided parameters."""
    ((by_hand, in_session),) = fork_script(SCRIPT, 2, "tp", timeout_s=115).json().values()
    assert in_session == by_hand + 2
