"""Notes what a loop draws from Python's global generator: branches, batches, replay buffers.

Such a draw has no rows. It is the same on all ranks as soon as their streams are common.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

NAMES = (
    "random",
    "uniform",
    "randint",
    "randrange",
    "choice",
    "choices",
    "sample",
    "shuffle",
    "gauss",
    "normalvariate",
    "betavariate",
    "getrandbits",
)


def watch(counts: Callable[[], bool], note: Callable[[str], None]) -> None:
    """``counts``: whether a draw is one of the loop now. ``note``: is told the first function."""
    for name in NAMES:
        setattr(random, name, noted(f"random.{name}", getattr(random, name), counts, note))


def noted(
    name: str, original: Callable[..., Any], counts: Callable[[], bool], note: Callable[[str], None]
) -> Callable[..., Any]:
    """The same function, whose first draw in the loop is written down."""

    def draw(*args: Any, **kwargs: Any) -> Any:
        if counts():
            note(name)
        return original(*args, **kwargs)

    return draw
