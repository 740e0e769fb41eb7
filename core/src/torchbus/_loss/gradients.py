"""Gradients from before: kept apart from what a backward makes, and multiplied in place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from torchbus._compat.autograd import foreach_mul_
from torchbus._compat.dtensors import own_part
from torchbus._loss.graph import Number


@contextmanager
def made_anew(holders: Sequence[Any]) -> Iterator[None]:
    """Add what a backward inside the block makes to the gradients from before only at its end.

    ``holders``: tensors that have a ``grad``.
    """
    before = [holder.grad for holder in holders]
    if not any(gradient is not None for gradient in before):
        yield
        return
    for holder in holders:
        holder.grad = None
    try:
        yield
    finally:
        for holder, old in zip(holders, before, strict=True):
            if old is not None:
                holder.grad = _sum(old, holder.grad)


@torch.no_grad()
def _sum(old: Tensor, new: Tensor | None) -> Tensor:
    if new is None or new is old:
        return old
    return old + new if old.is_sparse or new.is_sparse else old.add_(new)


@torch.no_grad()
def scale_all(gradients: Sequence[Tensor], factor: Number) -> None:
    """Multiply gradients in place: sparse ones too, and of divided ones this rank's part."""
    dense = [own_part(gradient) for gradient in gradients if not gradient.is_sparse]
    if dense:
        foreach_mul_(dense, factor)
    for gradient in gradients:
        if gradient.is_sparse:
            gradient.mul_(factor)
