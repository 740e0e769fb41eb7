"""Whether a model can be divided."""

from __future__ import annotations

from torch.distributed.tensor import DTensor
from torch.nn import Module
from torchbus.plugin import UsageError


def can_be_divided(model: Module) -> bool:
    """Whether there is something to divide. Raises UsageError for what can't be."""
    divided = [
        name for name, parameter in model.named_parameters() if isinstance(parameter, DTensor)
    ]
    if len(divided) == len(list(model.parameters())):
        return False
    if divided:
        raise UsageError(
            f"{type(model).__name__} shares {divided[0]} with another model, which is divided"
            " already: under strategy='fsdp' a parameter belongs to one model; use strategy='ddp'"
            " or 'ddp_sharded'"
        )
    _refuse_sparse(model)
    scalar = next((name for name, one in model.named_parameters() if not one.dim()), None)
    if scalar is not None:
        raise UsageError(
            f"{type(model).__name__}.{scalar} has no dimension, and strategy='fsdp' divides dim 0:"
            " make it a tensor of one element (torch.tensor([value])), or use 'ddp' or"
            " 'ddp_sharded'"
        )
    return True


def _refuse_sparse(model: Module) -> None:
    sparse = [path for path, part in model.named_modules() if getattr(part, "sparse", False)]
    if sparse:
        place = f"{type(model).__name__}.{sparse[0]}".rstrip(".")
        raise UsageError(
            f"{place} has sparse gradients, which strategy='fsdp' can't divide: use sparse=False,"
            " or 'ddp'"
        )
