"""The thread that looks after a rank does not end by an error of its own and leave the rank
waiting.
"""

from __future__ import annotations

import pytest
from torchbus._launch.watch.guard import Guard
from torchbus.errors import RankFailed


def test_an_error_of_the_guard_ends_the_rank() -> None:
    def look() -> None:
        raise ConnectionResetError("the store has gone")

    guard = Guard(1, look, lambda number: None)
    # as the main thread does, once nothing waits for it any more
    guard.on_release(lambda: setattr(guard, "leaving", True))
    guard._thread.start()
    guard._thread.join(10.0)
    assert not guard._thread.is_alive() and guard.leaving
    with pytest.raises(
        RankFailed,
        match=r"the guard of rank 1 failed: ConnectionResetError\('the store has gone'\)",
    ):
        raise guard.reason or AssertionError
