"""What torch's ``fully_shard`` keeps to itself, and has to be looked at. Each parameter has two tensors: the part that this rank
keeps, and the whole one, which is there while its unit computes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.distributed.fsdp import FSDPModule
from torch.nn import Module


def units_in(model: Module) -> list[FSDPModule]:
    """The model's units, itself first."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def groups_in(model: Module) -> list[Any]:
    """The units' groups of parameters: one for each, in newer releases of torch several."""
    states = [unit._get_fsdp_state() for unit in units_in(model)]
    return [group for state in states for group in getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group] if group is not None]


def pairs_in(model: Module) -> list[Any]:
    """The parameters: ``sharded_param``, and once they were gathered ``_unsharded_param``."""
    return [pair for group in groups_in(model) for pair in group.fsdp_params]


def reduce_late(model: Module) -> None:
    """Gradients that came when their unit had reduced its gradients already would be lost without a word. All ranks call it alike."""
    for group in groups_in(model):
        if any(True for _ in _unreduced(group)):
            group.post_backward()
            group.finalize_backward()


def _unreduced(group: Any) -> Iterator[Any]:
    for pair in group.fsdp_params:
        whole = getattr(pair, "_unsharded_param", None)
        if whole is not None and whole.grad is not None:
            yield pair


def original_class(module: Module) -> type[Module]:
    """The script's own class of a divided module."""
    found: type[Module] = type(module).__mro__[2] if isinstance(module, FSDPModule) else type(module)
    return found
