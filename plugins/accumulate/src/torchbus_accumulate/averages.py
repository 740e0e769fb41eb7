"""Detects averages of weights that the loop updates itself, by comparing values."""

from __future__ import annotations

import cmath
import weakref

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import LBFGS, Optimizer
from torchbus import objects
from torchbus.plugin import Context, Unsupported

from torchbus_accumulate._compat import has_seen
from torchbus_accumulate.windows.sums import WindowSum
from torchbus_strategy.compat import is_divided

LOOKS = 3
"""The number of skipped steps after which the parameters of all models are read."""


class UnoptimizedChanges:
    """Compares parameters that no optimizer holds, from a skipped step to the next backward.

    Before the first real step this finds nothing, as an average equals the model until then.
    """

    def __init__(self, optimizers: WindowSums) -> None:
        self._optimizers = optimizers
        self._looks = 0
        self._before: dict[int, complex] = {}
        self.may_differ = False
        """Whether a real step has changed the model, so that an average may differ from it."""

    def note(self) -> None:
        """Called when a step of the loop was skipped."""
        if self.may_differ and self._looks < LOOKS:
            self._looks += 1
            self._before = self._values()

    def have_moved(self) -> bool:
        """Whether such a parameter has changed since the skipped step."""
        if not self._before:
            return False
        before, self._before = self._before, {}
        now = self._values()
        return any(now[key] != before[key] for key in now.keys() & before.keys())

    def _values(self) -> dict[int, complex]:
        alive = objects.alive(nn.Module, nn.Parameter)
        held = {id(each) for one in self._optimizers.sums for each in one.parameters()}
        held |= _internal([one for one in alive if isinstance(one, nn.Module)])
        others = [
            each
            for each in alive
            if type(each) is nn.Parameter and id(each) not in held  # subclasses may have no values
        ]
        values = {id(each): digest(each) for each in others}
        return {key: value for key, value in values.items() if value is not None}


def _internal(modules: list[nn.Module]) -> set[int]:
    """Return the ids of parameters that only plugins' modules hold.

    A plugin's reducer also holds parameters of the loop's models.
    """
    ours: set[int] = set()
    theirs: set[int] = set()
    for module in modules:
        kind = ours if objects.is_internal(module) else theirs
        kind.update(id(each) for each in module.parameters(recurse=kind is ours))
    return ours - theirs


def digest(tensor: Tensor) -> complex | None:
    """Return the sum of a tensor's elements.

    Returns None for a sharded, sparse or empty tensor, or if it has no values or contains NaN. fsdp
    frees the memory of a gathered parameter, and reading it would crash the process.
    """
    if is_divided(tensor) or tensor.layout != torch.strided or tensor.is_meta or not tensor.numel():
        return None
    if tensor.untyped_storage().nbytes() < tensor.numel() * tensor.element_size():
        return None
    try:
        total: complex = tensor.detach().cpu().to(torch.complex128).sum().item()
    except Unsupported:  # under pipeline, the values are another rank's
        return None
    return None if cmath.isnan(total) else total


class WindowSums:
    """Holds the gradients that a window has summed for each captured optimizer.

    ``of`` has the sums by the optimizer's id. ``sums`` has all of them, in the order in which the
    optimizers were found.
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
        """Leave an optimizer out, as its steps are not steps of the training loop."""
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
                " the last batch of a window. Remove accumulate_grad_batches=, or use another"
                " optimizer"
            )
        self.of[id(optimizer)] = WindowSum(optimizer)
        self.sums = tuple(self.of.values())
        weakref.finalize(optimizer, _forget, weakref.ref(self), id(optimizer))

    def close(self) -> None:
        self.of.clear()
        self.sums = ()

    def refuse_foreign_scaler(self, optimizer: Optimizer) -> None:
        """At the first skipped step, raise Unsupported if the loop uses a GradScaler."""
        self.checked = True
        if any(has_seen(scaler, optimizer) for scaler in objects.alive(GradScaler)):
            raise Unsupported(
                "accumulate_grad_batches with the loop's own GradScaler, which unscales at each"
                " step: use precision='16-mixed' instead of it, or accumulate in the loop under"
                " s.accumulating(...)"
            )


def _forget(reference: weakref.ref[WindowSums], key: int) -> None:
    """Forget an optimizer. Holds no reference to the session, which the optimizer may outlive."""
    every = reference()
    if every is not None:
        every.of.pop(key, None)
        every.sums = tuple(every.of.values())
