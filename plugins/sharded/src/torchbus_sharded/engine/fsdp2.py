"""What torch's ``fully_shard`` keeps to itself, and has to be looked at. Each parameter has two tensors: the part that this rank
keeps, and the whole one, which is there while its unit computes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, _redistribute
from torch.nn import Module
from torchbus.plugin import Unsupported

T = TypeVar("T")


def _once(find: Callable[[Any], T]) -> Callable[[Module], T]:
    """Kept with what the engine knows of the model, which stays as it is until the end of the block."""
    name = f"torchbus_{find.__name__}"

    @functools.wraps(find)
    def found(model: Any) -> T:
        state = vars(model._get_fsdp_state())
        if name not in state:
            state[name] = find(model)
        kept: T = state[name]
        return kept

    return found


@_once
def units_in(model: Module) -> list[FSDPModule]:
    """The model's units, itself first."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


@_once
def groups_in(model: Module) -> list[Any]:
    """The units' groups of parameters: one for each, in newer releases of torch several."""
    states = [unit._get_fsdp_state() for unit in units_in(model)]
    return [group for state in states for group in getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group] if group is not None]


@_once
def pairs_in(model: Module) -> list[Any]:
    """The parameters: ``sharded_param``, and once they were gathered ``_unsharded_param``."""
    return [pair for group in groups_in(model) for pair in group.fsdp_params]


@_once
def buffers_in(model: Module) -> list[dict[str, Tensor | None]]:
    """Those of each of its modules, which may come to hold others."""
    return [module._buffers for module in model.modules()]


def gathered_in(model: Module) -> list[tuple[Tensor, nn.Parameter]]:
    """Whole tensors that were made, and the parts that are kept."""
    return [(pair._unsharded_param, pair.sharded_param) for pair in pairs_in(model) if hasattr(pair, "_unsharded_param")]


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


def let_go_of_early(module: Module) -> None:
    """What was gathered ahead, and nobody has come for, has the values of then. Its unit is gathered anew."""
    for group in groups_in(module):
        if group._all_gather_result is not None:
            work = group._all_gather_result.all_gather_work
            if work is not None:
                work.wait()
            group._all_gather_result = None


def reset(model: Module) -> None:
    """After a forward or a backward that was left by an exception; gradients on their way are lost. Nothing is sent."""
    unit: Any = model
    if not hasattr(unit, "reset_iter_state"):
        raise Unsupported(
            f"an exception left a forward or backward of {original_class(model).__name__} under strategy='fsdp', and this torch can't go on "
            "after that: let it end the run, install torch 2.13 or later, or use strategy='ddp'"
        )
    if unit._get_fsdp_state()._is_root is None:
        return  # it has computed nothing yet, and torch can't reset what it makes at the first call
    unit.reset_iter_state()
    for whole, _ in gathered_in(model):
        whole.grad = None


def forget_meshes() -> None:
    """Torch remembers the outcome of operations with the mesh, and so the rank, of an earlier block in this process, or in the one that it
    was forked from: other ranks would take parts that are rank 0's."""
    dispatcher: Any = DTensor._op_dispatcher
    dispatcher.sharding_propagator.propagate_op_sharding.cache_clear()
    in_newer_releases = (torch._C, "_clear_DTensor_sharding_propagator_cache"), (getattr(_redistribute, "_gen_transform_infos", None), "cache_clear")
    for holder, name in in_newer_releases:
        getattr(holder, name, lambda: None)()


def original_class(module: Module) -> type[Module]:
    """The script's own class of a divided module."""
    found: type[Module] = type(module).__mro__[2] if isinstance(module, FSDPModule) else type(module)
    return found


def name_as_before(unit: Module) -> Callable[[], None]:
    """The class that torch has made is called what the script's own is. Returns what puts torch's name back."""
    made, name = type(unit), type(unit).__name__
    made.__name__ = original_class(unit).__name__
    return lambda: setattr(made, "__name__", name)
