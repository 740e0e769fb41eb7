"""``average.lerp_(weight, 0.1)``: a whole tensor takes the values of a divided one.

Torch computes them, and raises AssertionError then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torchbus.tree import map_tensors

from torchbus_strategy import sharding

aten = torch.ops.aten
PACKETS = (
    aten.add_,
    aten.sub_,
    aten.mul_,
    aten.div_,
    aten.lerp_,
    aten.addcmul_,
    aten.addcdiv_,
    aten.copy_,
)


def write(
    operator: Callable[..., object], arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> object:
    if isinstance(arguments[0], DTensor):
        with sharding.torchs_own(operator):
            return operator(*arguments, **keywords)
    return operator(*map_tensors(arguments, sharding.whole), **keywords)


WRITES: dict[object, Callable[..., object]] = {
    getattr(packet, overload): write for packet in PACKETS for overload in packet.overloads()
}
"""What DTensor calls for these operators. All ranks call them."""
