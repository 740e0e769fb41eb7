"""Random numbers inside a divided forward: each rank draws its own, for its own samples."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torchbus.runtime import builtin

from torchbus_strategy import random_streams


class OwnStream:
    """A stream that is seeded from the common one, without advancing that."""

    def __init__(self, rank: int) -> None:
        common = random_streams.read()
        builtin.seed(int(torch.randint(2**62, (1,))) + rank)
        self._state = random_streams.read()
        random_streams.write(common)

    @contextmanager
    def drawn_from(self) -> Iterator[None]:
        common = random_streams.read()
        random_streams.write(self._state)
        try:
            yield
        finally:
            self._state = random_streams.read()
            random_streams.write(common)
