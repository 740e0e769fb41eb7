"""Takes away what a loop draws from NumPy's global generator: latents, labels, mixing weights."""

from __future__ import annotations

import random
import sys
import zlib
from collections.abc import Callable, Sequence
from typing import Any

ROWS = (
    "normal",
    "uniform",
    "randn",
    "rand",
    "random",
    "random_sample",
    "standard_normal",
    "randint",
    "beta",
)
ORDERS = ("choice", "permutation", "shuffle")
"""They are of the data, and left as they are: the streams are common."""


def take_away(
    counts: Callable[[], bool], note: Callable[[str], None], names: Sequence[str] = ROWS
) -> None:
    """From here on each row of what is drawn is the same, and the same in every run.

    ``names``: of the functions to which this happens; the others are only noted. ``counts``:
    whether a draw is one of the loop now. ``note``: is told the first function.
    """
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return
    drawn = 0

    def alike(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def draw(*args: Any, **kwargs: Any) -> Any:
            nonlocal drawn
            values = original(*args, **kwargs)  # moves the generator as ever
            if not counts():
                return values
            drawn += 1
            note(f"numpy.random.{name}")
            state = numpy.random.RandomState(zlib.crc32(f"{drawn}".encode()))
            made = getattr(state, name)(*args, **kwargs)
            if getattr(made, "ndim", 0):
                made[:] = made[:1]
            return made

        return draw

    for name in names:
        setattr(numpy.random, name, alike(name, getattr(numpy.random, name)))
    for name in {*ROWS, *ORDERS} - {*names}:
        original = getattr(numpy.random, name)
        setattr(numpy.random, name, noted(f"numpy.random.{name}", original, counts, note))


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
