"""Counts the real steps of the loop."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from torch.optim import Optimizer

from torchbus.bus.base import hookimpl
from torchbus.bus.registry import Bus


class Steps:
    """Counts steps of optimizers that run. A step that a plugin leaves out does not count.

    ``count`` is the number of the loop's steps. Optimizers that step in turn make one step
    together. It ends when one of them steps that has stepped in it already. So the two networks of
    a GAN count once, and a loop that changes to another optimizer keeps counting.

    Plugins call ``follow()`` first. Their listeners to ``after_optimizer_step`` find the step
    counted.
    """

    hears_trials = False

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._follows = False
        self._made: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        # numbers, which are never reused: Python frees optimizers at other times on other ranks
        self._numbers: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._in_step: set[int] = set()
        self._given = 0
        self.count = 0

    def follow(self) -> Steps:
        """Begin to count."""
        if not self._follows:
            self._follows = True
            self._bus.register(self, "steps")
        return self

    def of(self, optimizer: Optimizer) -> int:
        """Return how many steps one optimizer has made."""
        return self._made.get(optimizer, 0)

    def optimizers(self) -> list[Optimizer]:
        """Return the optimizers that have stepped."""
        return list(self._made)

    def has_stepped(self, optimizer: Optimizer) -> bool:
        """Whether it takes part in the loop's latest step."""
        return self._numbers.get(optimizer) in self._in_step

    def go_on(
        self, count: int, made: Sequence[tuple[Optimizer, int]], stepped: Sequence[Optimizer]
    ) -> None:
        """Continue from a checkpoint.

        ``made``: the steps of each optimizer. ``stepped``: those that take part in the latest step.
        """
        self.count = count
        self._made = weakref.WeakKeyDictionary(dict(made))
        self._in_step = {self._number(optimizer) for optimizer in stepped}

    @hookimpl(tryfirst=True)
    def after_optimizer_step(self, optimizer: Optimizer) -> None:
        number = self._number(optimizer)
        self._made[optimizer] = self._made.get(optimizer, 0) + 1
        if not self._in_step or number in self._in_step:
            self.count += 1
            self._in_step = {number}
        else:
            self._in_step.add(number)

    def _number(self, optimizer: Optimizer) -> int:
        number = self._numbers.get(optimizer)
        if number is None:
            self._given += 1
            number = self._numbers[optimizer] = self._given
        return number
