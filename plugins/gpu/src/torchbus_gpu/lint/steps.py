"""How many steps the loop has made."""

from __future__ import annotations

from torch.optim import Optimizer
from torchbus.plugin import hookimpl


class Steps:
    """``count`` is that of the optimizer that has stepped most: where two take turns, both steps are one."""

    def __init__(self) -> None:
        self.count = 0
        self._each: dict[int, int] = {}

    @hookimpl
    def after_optimizer_step(self, optimizer: Optimizer) -> None:
        self._each[id(optimizer)] = own = self._each.get(id(optimizer), 0) + 1
        self.count = max(self.count, own)
