"""The optimizers that accumulate gradients."""

from __future__ import annotations

import weakref

from torch.amp.grad_scaler import GradScaler
from torch.optim import LBFGS, Optimizer
from torchbus import objects
from torchbus.plugin import Context, Unsupported

from torchbus_accumulate._compat import has_seen
from torchbus_accumulate.windows.sums import WindowSum


class Optimizers:
    """The sum of the window for each optimizer that the session captures.

    ``of``: by the optimizer's id. ``sums``: all of them, in the order in which the optimizers were
    found.
    """

    def __init__(self, session: Context) -> None:
        self._session = session
        self.checked = False
        self.of: dict[int, WindowSum] = {}
        self.sums: tuple[WindowSum, ...] = ()
        self._ignored: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        session.on_close.callback(self.close)

    def find(self) -> None:
        """Add the optimizers that the script created before the block."""
        for optimizer in objects.optimizers():
            self.add(optimizer)

    def ignore(self, optimizer: Optimizer) -> None:
        """Its steps are not steps of the training loop."""
        self._ignored.add(optimizer)

    def add(self, optimizer: Optimizer) -> None:
        if (
            not self._session.captures(optimizer)
            or id(optimizer) in self.of
            or optimizer in self._ignored
        ):
            return
        if isinstance(optimizer, LBFGS):
            raise Unsupported(
                "accumulate_grad_batches with LBFGS: it evaluates its closure many times, only on"
                " the last batch of a window"
            )
        self.of[id(optimizer)] = WindowSum(optimizer)
        self.sums = tuple(self.of.values())
        weakref.finalize(optimizer, _forget, weakref.ref(self), id(optimizer))

    def close(self) -> None:
        self.of.clear()
        self.sums = ()

    def refuse_foreign_scaler(self, optimizer: Optimizer) -> None:
        """At the first skipped step, raise Unsupported if the loop uses a GradScaler of its own."""
        self.checked = True
        if any(has_seen(scaler, optimizer) for scaler in objects.alive(GradScaler)):
            raise Unsupported(
                "accumulate_grad_batches with the loop's own GradScaler, which unscales at each"
                " step: use precision='16-mixed' instead of it, or accumulate in the loop under"
                " s.accumulating(...)"
            )


def _forget(reference: weakref.ref[Optimizers], key: int) -> None:
    """Forget an optimizer. Holds no reference to the session, which the optimizer may outlive."""
    every = reference()
    if every is not None:
        every.of.pop(key, None)
        every.sums = tuple(every.of.values())
