"""Losses that are DTensors, and ``loss_parallel``: cross entropy of logits divided by classes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel
from torchbus.plugin import BackwardCall, Context, Unsupported

from torchbus_strategy import compat
from torchbus_tensor_parallel._compat import CROSS_ENTROPY, functions_of_nn
from torchbus_tensor_parallel.dtensor.gradients import gathered

CrossEntropy = Callable[..., Tensor]
NONE, MEAN, SUM = 0, 1, 2  # as torch numbers reductions


def divide_losses(session: Context) -> None:
    """Until the end of the block, let ranks share the classes of a cross entropy."""
    session.on_close.enter_context(loss_parallel())
    session.replace(functions_of_nn, CROSS_ENTROPY, by_classes)


def by_classes(original: CrossEntropy) -> CrossEntropy:
    """The same on whole tensors. Of logits divided by classes, each rank reads its own.

    The result is a plain tensor, whose graph says what it is a mean of. What torch's loss_parallel
    can't do (weights beside ignored targets, smoothing, probabilities) gets whole logits.
    """

    def cross_entropy(
        logits: Tensor,
        target: Tensor,
        weight: Tensor | None = None,
        reduction: int = MEAN,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
    ) -> Tensor:
        remaining = (reduction, ignore_index, label_smoothing)
        if not isinstance(logits, DTensor):
            return original(logits, target, weight, *remaining)
        if weight is not None or label_smoothing or target.is_floating_point() or logits.dim() < 2:
            return original(logits.full_tensor(), target, weight, *remaining)
        each = original(logits, target, None, NONE, ignore_index, 0.0)
        losses = each.to_local() if isinstance(each, DTensor) else each
        if reduction == NONE:
            return losses
        total = losses.sum()
        retained = (target != ignore_index).sum().to(losses.dtype)
        return total if reduction == SUM else total / retained

    return cross_entropy


class PlainLoss:
    """A backward starts from the whole of a loss that the loop has made a DTensor.

    It gets its value over all ranks as others do.
    """

    def __init__(self) -> None:
        self._given: DTensor | None = None

    def begin(self, call: BackwardCall) -> None:
        self._given = call.loss if isinstance(call.loss, DTensor) else None
        if self._given is not None:
            call.tensors = gathered(self._given).clone()  # a view would keep its own value

    @torch.no_grad()
    def end(self, call: BackwardCall) -> None:
        given, self._given = self._given, None
        if given is not None and call.loss is not None:
            mine = compat.local_part(given.detach())
            mine.copy_(call.loss if _counts_here(given) else torch.zeros_like(mine))


def _counts_here(one: DTensor) -> bool:
    """Whether this rank's number is the whole, or the first of those that are added up."""
    adds = any(getattr(each, "reduce_op", "") == "sum" for each in one.placements)
    return not adds or one.device_mesh.get_local_rank() == 0


def refuse_divided_loss(call: BackwardCall) -> None:
    """Raise Unsupported for a loss that the loop has made of divided logits in another way."""
    if isinstance(call.loss, DTensor):
        raise Unsupported(
            "loss_parallel=True: this loss is a DTensor, which cross_entropy would not have"
            " returned. Use torch.nn.functional.cross_entropy, compute the loss of"
            " logits.full_tensor(), or leave loss_parallel out"
        )
