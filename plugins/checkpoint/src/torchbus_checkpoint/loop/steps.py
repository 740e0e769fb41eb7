"""Count epochs, and notice when the loop is between two steps."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torchbus.plugin import LoaderIterator, hookimpl
from torchbus.runtime.steps import Steps as Made


class Steps:
    """A step lies between two requests for a batch.

    Several optimizers may step in it, and the loop may read several loaders. The first loader that
    the loop asks is the head. When the loop asks the head again, the step is over, and this object
    calls ``at_boundary(iterator)``.

    ``epochs`` is the number of passes over the head, or of epochs of ``s.epochs`` (then
    ``counts_passes`` is False).
    ``since_save``: whether the loop has made a step since the last checkpoint.
    """

    hears_trials = False

    def __init__(self, made: Made, at_boundary: Callable[[LoaderIterator], None]) -> None:
        self._made = made
        self._at_boundary = at_boundary
        self._clean: set[int] = set()
        self._keeps: weakref.WeakKeyDictionary[Optimizer, bool] = weakref.WeakKeyDictionary()
        self._asked: list[weakref.ref[DataLoader[object]]] = []
        self._head: weakref.ref[DataLoader[object]] | None = None
        self._stepped = False
        self.epochs = 0
        self.counts_passes = True
        self.since_save = False

    @property
    def count(self) -> int:
        """Real steps of the loop, over all runs."""
        return self._made.count

    def put(self, epochs: int) -> None:
        """Continue to count from a checkpoint."""
        self.epochs, self.since_save = epochs, False

    def saved(self) -> None:
        self.since_save = False

    def epoch_ended(self) -> None:
        """``s.epochs`` has ended an epoch."""
        self.epochs += 1

    def has_gradients(self, optimizer: Optimizer) -> bool:
        """Whether the next step may need the present gradients.

        It does if a backward came after the last step, or if the loop does not clear them.
        """
        return id(optimizer) not in self._clean or self._keeps.get(optimizer, True)

    @hookimpl
    def before_backward(self) -> None:
        for optimizer in self._made.optimizers():
            if optimizer not in self._keeps and id(optimizer) in self._clean:
                self._keeps[optimizer] = _has_some(optimizer)

    @hookimpl
    def after_backward(self) -> None:
        self._clean.clear()

    @hookimpl
    def after_optimizer_step(self, optimizer: Optimizer) -> None:
        self._clean.add(id(optimizer))
        self._stepped = self.since_save = True
        if self._asked and (
            self._head is None or self._head() is None or self._head not in self._asked
        ):
            self._head = next((known for known in self._asked if known() is not None), None)

    @hookimpl
    def batch_wanted(self, loader: DataLoader[object], iterator: LoaderIterator) -> None:
        if not torch.is_grad_enabled():
            return
        reference = weakref.ref(loader)
        if self._stepped and reference == self._head:
            self._stepped = False
            self._asked = []
            self._at_boundary(iterator)
        if reference not in self._asked:
            self._asked.append(reference)

    @hookimpl
    def loader_end(self, loader: DataLoader[object]) -> None:
        if self.counts_passes and weakref.ref(loader) == self._head:
            self.epochs += 1


def _has_some(optimizer: Optimizer) -> bool:
    """Whether there are gradients. All ranks must agree, so zeros in a rank's part do not count."""
    return any(
        parameter.grad is not None
        for group in optimizer.param_groups
        for parameter in group["params"]
    )
