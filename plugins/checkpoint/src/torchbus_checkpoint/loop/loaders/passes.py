"""A pass over a loader that has begun."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

from torch.utils.data import DataLoader
from torchbus.plugin import LoaderIterator, Origin

from torchbus_checkpoint.loop.counters import Counters
from torchbus_checkpoint.replay.history import Section
from torchbus_checkpoint.state.plain import State


@dataclass(eq=False)
class OpenPass:
    """A pass over a loader.

    ``started`` and ``wanted`` are the random numbers at the creation of its iterator, and at the
    first request for a batch. ``taken_before`` is the number of batches that it had given when a
    later pass began.
    """

    section: Section
    ordinal: int
    loader: weakref.ref[DataLoader[object]]
    started: State
    counters: Counters
    samples: dict[str, str]
    wanted: State | None = None
    iterator: weakref.ref[LoaderIterator] | None = None
    origin: Origin | None = None
    taken_before: int = -1

    @property
    def alive(self) -> LoaderIterator | None:
        return None if self.iterator is None else self.iterator()

    @property
    def taken(self) -> int:
        return 0 if self.alive is None else self.alive.taken

    @property
    def exhausted(self) -> bool:
        return self.alive is None or self.alive.ended
