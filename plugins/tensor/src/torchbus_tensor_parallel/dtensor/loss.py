"""``loss_parallel``: cross entropy of logits that are divided by classes."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel
from torchbus.plugin import BackwardCall, Context, Unsupported

from torchbus_tensor_parallel._compat import CROSS_ENTROPY, functions_of_nn

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
        rest = (reduction, ignore_index, label_smoothing)
        if not isinstance(logits, DTensor):
            return original(logits, target, weight, *rest)
        if weight is not None or label_smoothing or target.is_floating_point() or logits.dim() < 2:
            return original(logits.full_tensor(), target, weight, *rest)
        each = original(logits, target, None, NONE, ignore_index, 0.0)
        losses = each.to_local() if isinstance(each, DTensor) else each
        if reduction == NONE:
            return losses
        total = losses.sum()
        kept = (target != ignore_index).sum().to(losses.dtype)
        return total if reduction == SUM else total / kept

    return cross_entropy


def refuse_divided_loss(call: BackwardCall) -> None:
    """Raise Unsupported for a loss that the loop has made of divided logits in another way."""
    if isinstance(call.loss, DTensor):
        raise Unsupported(
            "loss_parallel=True: this loss is a DTensor, which cross_entropy would not have"
            " returned. Use torch.nn.functional.cross_entropy, compute the loss of"
            " logits.full_tensor(), or leave loss_parallel out"
        )
