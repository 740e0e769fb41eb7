"""Random numbers inside a divided forward: each rank's own, for its samples are its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torchbus.plugin import random_streams


class OwnStream:
    """Begun from the common stream, which stays where it is."""

    def __init__(self, rank: int) -> None:
        common = random_streams.read()
        random_streams.seed(int(torch.randint(2**62, (1,))) + rank)
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
