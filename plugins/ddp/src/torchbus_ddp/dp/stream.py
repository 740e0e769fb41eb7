"""Random numbers inside a divided forward: each rank's own, for its samples are its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torchbus._ranks.random_streams import read, seed, write


class OwnStream:
    """Begun from the common stream, which stays where it is."""

    def __init__(self, rank: int) -> None:
        common = read()
        seed(int(torch.randint(2**62, (1,))) + rank)
        self._state = read()
        write(common)

    @contextmanager
    def drawn_from(self) -> Iterator[None]:
        common = read()
        write(self._state)
        try:
            yield
        finally:
            self._state = read()
            write(common)
