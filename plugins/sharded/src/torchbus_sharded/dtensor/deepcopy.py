"""``copy.deepcopy`` of a parameter."""

from __future__ import annotations

from torch import nn
from torch.distributed.tensor import DTensor


def copied(tensor: DTensor, memo: dict[int, object]) -> object:
    """A copy of this rank's part without its gradient, as without a session. Torch fails here."""
    if id(tensor) in memo:
        return memo[id(tensor)]
    if not tensor.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user support the deepcopy protocol"
        )
    own = tensor.detach().clone()
    memo[id(tensor)] = (
        nn.Parameter(own, tensor.requires_grad)
        if isinstance(tensor, nn.Parameter)
        else own.requires_grad_(tensor.requires_grad)
    )
    return memo[id(tensor)]
