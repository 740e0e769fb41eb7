"""Counts steps and epochs, and hears when the loop is between two steps."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torchbus.plugin import LoaderIterator, hookimpl


class Steps:
    """A step is what lies between two requests for a batch: several optimizers may step in it, a loop may read several
    loaders. The loader that is asked first is its head: when the loop asks the head again, the step is over, and
    ``at_boundary(iterator)`` is called.

    ``count`` is the number of real steps of the optimizer that made the most; ``epochs`` the number of passes over the head,
    or what ``s.epochs`` says (``counts_passes`` is False then). ``since_save``: whether a step was made since the last checkpoint.
    """

    def __init__(self, at_boundary: Callable[[LoaderIterator], None]) -> None:
        self._at_boundary = at_boundary
        self._made: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._clean: set[int] = set()
        self._keeps: weakref.WeakKeyDictionary[Optimizer, bool] = weakref.WeakKeyDictionary()
        self._asked: list[weakref.ref[DataLoader[Any]]] = []
        self._head: weakref.ref[DataLoader[Any]] | None = None
        self._stepped = False
        self._before = 0
        self.epochs = 0
        self.counts_passes = True
        self.since_save = False

    @property
    def count(self) -> int:
        return self._before + max(self._made.values(), default=0)

    def made(self, optimizer: Optimizer) -> int:
        """Its steps, over all runs."""
        return self._made.get(optimizer, 0)

    def put(self, count: int, epochs: int, made: dict[Optimizer, int]) -> None:
        """Go on counting from a checkpoint: each optimizer where it was."""
        self._made = weakref.WeakKeyDictionary(made)
        self._before, self.epochs, self.since_save = count - max(made.values(), default=0), epochs, False

    def saved(self) -> None:
        self.since_save = False

    def epoch_ended(self) -> None:
        """By ``s.epochs``."""
        self.epochs += 1

    def has_gradients(self, optimizer: Optimizer) -> bool:
        """Whether the next step may need those that are there: a backward came after the last one, or the loop does not clear them."""
        return id(optimizer) not in self._clean or self._keeps.get(optimizer, True)

    @hookimpl
    def before_backward(self) -> None:
        for optimizer in self._made:
            if optimizer not in self._keeps and id(optimizer) in self._clean:
                self._keeps[optimizer] = _has_some(optimizer)

    @hookimpl
    def after_backward(self) -> None:
        self._clean.clear()

    @hookimpl
    def after_optimizer_step(self, optimizer: Optimizer) -> None:
        self._made[optimizer] = self._made.get(optimizer, 0) + 1
        self._clean.add(id(optimizer))
        self._stepped = self.since_save = True
        if self._asked and (self._head is None or self._head() is None or self._head not in self._asked):
            self._head = next((known for known in self._asked if known() is not None), None)

    @hookimpl
    def batch_wanted(self, loader: DataLoader[Any], iterator: LoaderIterator) -> None:
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
    def loader_end(self, loader: DataLoader[Any]) -> None:
        if self.counts_passes and weakref.ref(loader) == self._head:
            self.epochs += 1


def _has_some(optimizer: Optimizer) -> bool:
    """Alike on all ranks, which write their parts together: so not whether they are zero, where each rank has a part of them."""
    return any(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"])
