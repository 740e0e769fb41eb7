"""When a run has seen enough: after so many real steps of each optimizer."""

from __future__ import annotations

import weakref
from typing import Any

from torch.optim import Optimizer

AT_MOST = 10
"""One optimizer may make this many times the steps while another one is waited for."""


class Enough(BaseException):
    """Ends the script where it is; ``except Exception`` does not catch it, ``finally`` runs."""


class Stopping:
    """Decides alike in every run: by the steps of the optimizers that the script has made."""

    def __init__(self, steps: int | None) -> None:
        self._wanted = steps
        self._known: list[weakref.ref[Optimizer]] = []
        self._made: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        optimizers: Any = Optimizer
        original = optimizers.__init__

        def __init__(optimizer: Optimizer, *args: object, **kwargs: object) -> None:
            original(optimizer, *args, **kwargs)
            self.number(optimizer)

        optimizers.__init__ = __init__

    @property
    def optimizers(self) -> dict[int, Optimizer]:
        """Those that are alive, by number: in the order in which they were made."""
        alive = {number: known() for number, known in enumerate(self._known)}
        return {number: one for number, one in alive.items() if one is not None}

    def number(self, optimizer: Optimizer) -> int:
        """That of an optimizer; a new one gets the next."""
        found = next((number for number, one in self.optimizers.items() if one is optimizer), None)
        if found is None:
            self._known.append(weakref.ref(optimizer))
        return len(self._known) - 1 if found is None else found

    def stepped(self, optimizer: Optimizer, steps: int) -> None:
        """Raises Enough after the last step that is wanted."""
        self._made[optimizer] = steps
        if self._wanted is None:
            return
        fewest = min(self._made.get(one, 0) for one in self.optimizers.values())
        if fewest >= self._wanted or steps >= AT_MOST * self._wanted:
            raise Enough

    def backward_begins(self, number: int) -> None:
        """Of a loop without an optimizer, a backward is a step."""
        if self._wanted is not None and not self._known and number >= self._wanted:
            raise Enough
