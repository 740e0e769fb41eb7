"""Which optimizers take part."""

from __future__ import annotations

import weakref

from torch.amp.grad_scaler import GradScaler
from torch.optim import LBFGS, Optimizer
from torchbus.plugin import Context, Unsupported, inventory

from torchbus_accumulate.windows.sums import WindowSum


class Optimizers:
    """The window's sum of every optimizer that the session captures.

    ``of``: by the optimizer's id; ``sums``: all of them, in the order in which the optimizers were found.
    """

    def __init__(self, session: Context) -> None:
        self._session = session
        self.checked = False
        self.of: dict[int, WindowSum] = {}
        self.sums: tuple[WindowSum, ...] = ()
        self._alone: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        session.on_close.callback(self.close)

    def find(self) -> None:
        """Those made before the block, which no variable named."""
        for optimizer in inventory.alive(Optimizer):
            self.add(optimizer)

    def leave_alone(self, optimizer: Optimizer) -> None:
        """Its steps are no steps of the training loop."""
        self._alone.add(optimizer)

    def add(self, optimizer: Optimizer) -> None:
        if not self._session.captures(optimizer) or id(optimizer) in self.of or optimizer in self._alone:
            return
        if isinstance(optimizer, LBFGS):
            raise Unsupported("accumulate_grad_batches with LBFGS: it evaluates its closure many times, on the last batch of a window only")
        self.of[id(optimizer)] = WindowSum(optimizer)
        self.sums = tuple(self.of.values())
        weakref.finalize(optimizer, _forget, weakref.ref(self), id(optimizer))

    def close(self) -> None:
        self.of.clear()
        self.sums = ()

    def refuse_foreign_scaler(self, optimizer: Optimizer) -> None:
        """At the first step that is not taken."""
        self.checked = True
        if any(id(optimizer) in getattr(scaler, "_per_optimizer_states", ()) for scaler in inventory.alive(GradScaler)):
            raise Unsupported(
                "accumulate_grad_batches with the loop's own GradScaler, which unscales at each step: use precision='16-mixed' "
                "instead of it, or accumulate in the loop under s.accumulating(...)"
            )


def _forget(reference: weakref.ref[Optimizers], key: int) -> None:
    """An optimizer may live on after the session, which it must not keep."""
    every = reference()
    if every is not None:
        every.of.pop(key, None)
        every.sums = tuple(every.of.values())
