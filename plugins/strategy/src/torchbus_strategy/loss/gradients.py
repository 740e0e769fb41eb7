"""Separates earlier gradients from those of a backward, and scales gradients in place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from torchbus_strategy.compat import foreach_mul_, local_part
from torchbus_strategy.compat import gradient as gradient_of
from torchbus_strategy.loss.terms import Number

Gradients = list[tuple[Any, Tensor]]
NONE = {type(None)}


@contextmanager
def isolated_gradients(holders: Sequence[Any]) -> Iterator[None]:
    """Set earlier gradients aside in the block, and add them to the new ones at its end.

    ``holders`` are tensors with a ``grad``.
    """
    before = stash_gradients(holders)
    try:
        yield
    finally:
        add_again(before)


def stash_gradients(holders: Sequence[Any]) -> Gradients:
    """Remove earlier gradients from their holders, and return both."""
    if set(map(type, map(gradient_of, holders))) == NONE:
        return []
    before = [(holder, holder.grad) for holder in holders if holder.grad is not None]
    for holder, _ in before:
        holder.grad = None
    return before


def add_again(before: Gradients) -> None:
    """Add earlier gradients to those that have been made since then."""
    for holder, old in before:
        holder.grad = _sum(old, holder.grad)


@torch.no_grad()
def _sum(old: Tensor, new: Tensor | None) -> Tensor:
    if new is None or new is old:
        return old
    return old + new if old.is_sparse or new.is_sparse else old.add_(new)


@torch.no_grad()
def scale_all(gradients: Sequence[Tensor], factor: Number) -> None:
    """Multiply gradients of any shape and dtype in place, sparse ones too.

    Of a gradient that is divided among ranks, it multiplies this rank's part.
    """
    dense = [local_part(gradient) for gradient in gradients if not gradient.is_sparse]
    if dense:
        foreach_mul_(dense, factor)
    for gradient in gradients:
        if gradient.is_sparse:
            gradient.mul_(factor)
