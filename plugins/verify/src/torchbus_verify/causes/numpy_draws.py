"""Removes a loop's draws from NumPy's global generator: latents, labels, mixing weights."""

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
    """Make all rows of each draw equal, and the same in every run, from now on.

    ``names``: the functions that are replaced; the others are only recorded. ``counts``: whether a
    draw belongs to the loop at this time. ``note``: called with the first function.
    """
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return
    drawn = 0

    def alike(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def draw(*args: Any, **kwargs: Any) -> Any:
            nonlocal drawn
            values = original(*args, **kwargs)  # advances the generator as usual
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
    """``counts``: whether a draw belongs to the loop now.

    ``note``: called with the first function.
    """
    for name in NAMES:
        setattr(random, name, noted(f"random.{name}", getattr(random, name), counts, note))


def noted(
    name: str, original: Callable[..., Any], counts: Callable[[], bool], note: Callable[[str], None]
) -> Callable[..., Any]:
    """Wrap a function to record its first draw in the loop."""

    def draw(*args: Any, **kwargs: Any) -> Any:
        if counts():
            note(name)
        return original(*args, **kwargs)

    return draw
