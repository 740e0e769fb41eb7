"""Losses by element, such as ``mse_loss``, of DTensors.

In the backward of their mean, torch divides by the number of elements of this rank's part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torchbus.tree import map_tensors

from torchbus_strategy import sharding

aten = torch.ops.aten


def loss(
    operator: Callable[..., Any], arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> Tensor:
    """That of the whole tensors, on every rank."""
    found: Tensor = operator(*map_tensors(arguments, sharding.whole), **keywords)
    return found


def gradient(
    operator: Callable[..., Any], arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> Tensor:
    """The same, divided as the first input is, unless that is a sum still to be made.

    Of whole inputs it is torch's own, which is right.
    """
    if not any(isinstance(one, DTensor) for one in arguments[1:]):
        with sharding.torchs_own(operator):
            own: Tensor = operator(*arguments, **keywords)
            return own
    found, of = loss(operator, arguments, keywords), arguments[1]
    is_divided = isinstance(of, DTensor) and not any(one.is_partial() for one in of.placements)
    divided: Tensor = sharding.like(found, of) if is_divided else found
    return divided


LOSSES: dict[object, Callable[..., object]] = {
    aten.mse_loss.default: loss,
    aten.mse_loss_backward.default: gradient,
    aten.smooth_l1_loss.default: loss,
    aten.smooth_l1_loss_backward.default: gradient,
    aten.huber_loss.default: loss,
    aten.huber_loss_backward.default: gradient,
    aten.soft_margin_loss.default: loss,
    aten.soft_margin_loss_backward.default: gradient,
    aten.binary_cross_entropy.default: loss,
    aten.binary_cross_entropy_backward.default: gradient,
}
"""What DTensor calls for these operators. All ranks call them."""
