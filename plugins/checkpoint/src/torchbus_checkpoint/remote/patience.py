"""Try again, after longer and longer waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from torchbus_checkpoint.remote.store import StoreError

FIRST_S, LAST_S, TRIES = 0.5, 60.0, 5
Answer = TypeVar("Answer")


def waits(first_s: float | None = None) -> Callable[[], float]:
    """Return a function that gives 0.5, 1, 2, ... 60 seconds."""
    next_s = [FIRST_S if first_s is None else first_s]

    def wait_s() -> float:
        now_s, next_s[0] = next_s[0], min(next_s[0] * 2, LAST_S)
        return now_s

    return wait_s


def patiently(ask: Callable[[], Answer]) -> Answer:
    """Return the answer. Raises the last StoreError after a few tries.

    Use it at the start of a job, which can't go on without the answer.
    """
    wait_s, tries = waits(), TRIES
    while True:
        try:
            return ask()
        except StoreError:
            tries -= 1
            if not tries:
                raise
        threading.Event().wait(wait_s())
