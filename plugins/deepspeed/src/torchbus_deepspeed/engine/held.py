"""What the parts of a session need to know of its engines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from torch.optim import Optimizer
from torchbus.plugin import Context

from torchbus_deepspeed.engine.engine import Engine


class Held(Protocol):
    """The engines of a session."""

    session: Context

    def __iter__(self) -> Iterator[Engine]: ...

    def of(self, optimizer: Optimizer) -> list[Engine]: ...
