"""``seed=``: every generator of this process is seeded before the loop begins."""

from __future__ import annotations

import random
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from torchbus._bus.markers import hookimpl

if TYPE_CHECKING:
    from torchbus._session.context import Context


class Seeds:
    """Seeds torch on all devices, ``random`` and NumPy, on all ranks alike.

    So the block draws what one process draws after ``torch.manual_seed(seed)``,
    ``random.seed(seed)`` and ``numpy.random.seed(seed)``. What comes later is for the session's
    streams: one for each rank in training. Workers of loaders derive theirs from the common stream.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    @hookimpl(tryfirst=True)
    def session_start(self, session: Context) -> None:
        if find_spec("numpy") is not None:
            import numpy  # noqa: F401  (a loop that imports it later draws from it, too)
        seed(self._seed)

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]]:
        return {"seed": [f"{self._seed}: torch on all devices, random and NumPy, on all ranks"]}


def seed(number: int) -> None:
    """Seed the generators of this process."""
    torch.manual_seed(number)
    random.seed(number)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(number % 2**32)
