"""Whether a model can be divided."""

from __future__ import annotations

from collections.abc import Iterable

import torch
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
    for name, one in model.named_parameters():
        if not one.dim():
            raise UsageError(
                f"{type(model).__name__}.{name} has no dimension, and strategy='fsdp' divides dim"
                " 0: make it a tensor of one element (torch.tensor([value])), or use 'ddp' or"
                " 'ddp_sharded'"
            )
        if not one.numel() and one.requires_grad:
            raise UsageError(
                f"{type(model).__name__}.{name} of shape {tuple(one.shape)} has no elements, and"
                " torch's engine can't reduce its gradient under strategy='fsdp': freeze it"
                " (requires_grad_(False)), or use 'ddp'"
            )
    return True


def refuse_unlike_dtypes(model: Module, units: Iterable[Module]) -> None:
    """Raise UsageError for trained parameters of one unit whose dtypes torch does not reduce.

    ``units``: inner ones first, as they are divided.
    """
    seen: set[int] = set()
    names = {id(one): name for name, one in model.named_parameters()}
    for unit in units:
        own = {id(one): one for one in unit.parameters() if id(one) not in seen}
        seen |= own.keys()
        kinds = {one.dtype: names[key] for key, one in own.items() if one.requires_grad}
        if len(kinds) > 1 or any(dtype.is_complex for dtype in kinds):
            which = " and ".join(f"{name} is {_word(dtype)}" for dtype, name in kinds.items())
            raise UsageError(
                f"{type(model).__name__}: {which}. Under strategy='fsdp', what is trained and"
                " gathered together has one dtype, a real one: give it one dtype (precision='bf16'"
                " computes in another), keep a complex parameter as torch.view_as_real(parameter),"
                " or use 'ddp'"
            )


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _refuse_sparse(model: Module) -> None:
    sparse = [path for path, part in model.named_modules() if getattr(part, "sparse", False)]
    if sparse:
        place = f"{type(model).__name__}.{sparse[0]}".rstrip(".")
        raise UsageError(
            f"{place} has sparse gradients, which strategy='fsdp' can't divide: use sparse=False,"
            " or 'ddp'"
        )
