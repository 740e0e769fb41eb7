"""How the tensors that a model takes and returns change their dtypes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)
Change = Callable[[Tensor], Tensor]


def floats_to(dtype: torch.dtype) -> Change:
    """Convert real floating tensors to this dtype, and leave others as they are."""
    return lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor


def halves_to_float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in HALF else tensor
