"""``copy.deepcopy`` of a divided tensor gives a whole one. All ranks call it."""

from __future__ import annotations

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from torchbus_strategy import sharding


def copied(tensor: DTensor, memo: dict[int, object]) -> object:
    """Without its gradient, as torch copies a parameter."""
    if id(tensor) not in memo:
        if not tensor.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user support the deepcopy protocol"
            )
        own: Tensor = sharding.whole(tensor).clone()
        made = nn.Parameter(own) if isinstance(tensor, nn.Parameter) else own
        memo[id(tensor)] = made.requires_grad_(tensor.requires_grad)
    return memo[id(tensor)]
