"""Random numbers inside the stages: each rank draws its own, for its own layers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torchbus.plugin import Context
from torchbus.runtime import builtin

from torchbus_strategy import random_streams


class OwnStream:
    """Seeded for each pass from the common stream, which does not advance.

    A pass is known by the clock of the session and its number since that moved. So a run that
    resumes from a checkpoint draws the numbers that it would have drawn.
    """

    def __init__(self, session: Context) -> None:
        self._session = session
        self._clock, self._passes = -1, 0

    @contextmanager
    def drawn_from(self) -> Iterator[None]:
        now = self._session.random.now
        self._passes = self._passes + 1 if now == self._clock else 0
        self._clock = now
        common = random_streams.read()
        key = (int(torch.randint(2**62, (1,))), now, self._passes, self._session.rank)
        builtin.seed(hash(key) % 2**62)  # of numbers, it is the same in every process
        try:
            yield
        finally:
            random_streams.write(common)
