"""A pass over a loader that has begun."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader
from torchbus.plugin import LoaderIterator, Origin

from torchbus_checkpoint.loop.counters import Counters
from torchbus_checkpoint.replay.history import Section

State = dict[str, Any]


@dataclass(eq=False)
class OpenPass:
    """``started`` and ``wanted`` are the random numbers as they stood when its iterator was made, and
    when it was first asked for a batch; ``taken_before``, how many it had given when a later one began."""

    section: Section
    ordinal: int
    loader: weakref.ref[DataLoader[Any]]
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
