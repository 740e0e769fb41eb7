"""The private parts of torch's ``fully_shard`` that this package needs.

Each parameter has two tensors: the part that this rank keeps, and the whole one, which is there
while its unit computes.

All were seen in 2.13; the package needs 2.6. Without one of them: AttributeError by its name,
when a model is divided, computes or is made whole; UsageError where it would be missed quietly.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed import _composable_state
from torch.distributed._composable.contract import REGISTRY_KEY, STATE_KEY
from torch.distributed.fsdp import FSDPModule
from torch.nn import Module
from torchbus.compat.required import absent, require
from torchbus.plugin import Unsupported

from torchbus_sharded._compat.tensors import MODULE_HOOKS, buffers, parameters

T = TypeVar("T")
SEEN_BY = "2.13"
ENGINE = ("torch.distributed.fsdp", "torch.distributed._composable")
LEFT_BY_ENGINE = (
    STATE_KEY,
    REGISTRY_KEY,
    "_is_fsdp_managed_module",
    "_fsdp_use_orig_params",
)


class Pair(Protocol):
    """The attributes of ``FSDPParam`` that this package reads and adds.

    ``UsedParameters`` has notes on gradients, and ``Writes`` has the versions that it has seen.
    """

    sharded_param: nn.Parameter
    sharded_state: Any
    torchbus_reached: bool
    torchbus_had_none: bool
    torchbus_watched: Tensor
    torchbus_calls_hooks: bool
    torchbus_part_version: int
    torchbus_part_sum: int | None
    torchbus_whole_version: int


class Group(Protocol):
    """The attributes of ``FSDPParamGroup``: parameters that are gathered together."""

    fsdp_params: list[Pair]
    comm_ctx: Any
    _training_state: Any
    _all_gather_result: Any

    def reshard(self) -> None: ...

    def post_backward(self) -> None: ...

    def finalize_backward(self) -> None: ...


def _once(find: Callable[[Any], T]) -> Callable[[Module], T]:
    """Look it up once, and cache it in the engine's state of the model.

    It stays the same until the end of the block.
    """
    name = f"torchbus_{find.__name__}"

    @functools.wraps(find)
    def found(model: Any) -> T:
        state = vars(model._get_fsdp_state())
        if name not in state:
            state[name] = find(model)
        value: T = state[name]
        return value

    return found


@_once
def units_in(model: Module) -> list[FSDPModule]:
    """The model's units, itself first."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


@_once
def groups_in(model: Module) -> list[Group]:
    """The units' groups of parameters: one for each, or several in newer releases of torch."""
    states = [unit._get_fsdp_state() for unit in units_in(model)]
    return [
        group
        for state in states
        for group in getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
        if group is not None
    ]


@_once
def pairs_in(model: Module) -> list[Pair]:
    """The parameters: ``sharded_param`` and, once they were gathered, ``_unsharded_param``."""
    pairs = [pair for group in groups_in(model) for pair in group.fsdp_params]
    for kind in {type(pair) for pair in pairs}:
        require(kind, "_unsharded_param", "holds the whole parameters while they are gathered")
    return pairs


@_once
def names_in(model: Module) -> set[str]:
    """The names of its parameters when it was sharded."""
    return {name for name, _ in model.named_parameters(remove_duplicate=False)}


@_once
def places_in(model: Module) -> list[tuple[dict[str, nn.Parameter | None], str, Pair]]:
    """The dicts and names under which its modules held parameters when it was sharded."""
    pair_of = {id(pair.sharded_param): pair for pair in pairs_in(model)}
    return [
        (there, name, pair_of[id(one)])
        for there in map(parameters, model.modules())
        for name, one in there.items()
        if id(one) in pair_of
    ]


@_once
def buffers_in(model: Module) -> list[dict[str, Tensor | None]]:
    """The buffer dict of each of its modules."""
    return [buffers(module) for module in model.modules()]


def gathered_in(model: Module) -> list[tuple[Tensor, nn.Parameter]]:
    """The whole tensors that the engine has made, each with this rank's shard."""
    found = [(unsharded(pair), pair.sharded_param) for pair in pairs_in(model)]
    return [(whole, part) for whole, part in found if whole is not None]


def unsharded(pair: Pair) -> nn.Parameter | None:
    """The whole parameter, or None before it is gathered for the first time."""
    return getattr(pair, "_unsharded_param", None)


def reduce_late(model: Module) -> None:
    """Reduce gradients that came after their unit had reduced its gradients. All ranks call it.

    Torch would lose them without a message.
    """
    for group in groups_in(model):
        if any(True for _ in _unreduced(group)):
            group.post_backward()
            group.finalize_backward()


def _unreduced(group: Group) -> Iterator[Pair]:
    for pair in group.fsdp_params:
        whole = unsharded(pair)
        if whole is not None and whole.grad is not None:
            yield pair


def can_reset(model: Module) -> bool:
    """Whether ``reset`` works instead of raising: since torch 2.13."""
    return hasattr(model, "reset_iter_state")


def reset(model: Module) -> None:
    """Clean up after an exception in a forward or a backward.

    Gradients that are being reduced are lost. It runs no collective.
    """
    unit: Any = model
    if not can_reset(model):
        raise Unsupported(
            f"an exception left a forward or backward of {original_class(model).__name__} under"
            " strategy='fsdp', and this torch can't continue after that: let it end the run,"
            " install torch 2.13 or later, or use strategy='ddp'"
        )
    if unit._get_fsdp_state()._is_root is None:
        return  # it has computed nothing yet, and torch can't reset what it makes at the first call
    unit.reset_iter_state()
    for whole, _ in gathered_in(model):
        whole.grad = None


def original_class(module: Module) -> type[Module]:
    """The script's own class of a divided module."""
    found: type[Module] = (
        type(module).__mro__[2] if isinstance(module, FSDPModule) else type(module)
    )
    return found


def name_as_before(unit: Module) -> Callable[[], None]:
    """Rename the class that torch has made to the script's class.

    Returns a function that puts torch's name back.
    """
    made, name = type(unit), type(unit).__name__
    made.__name__ = original_class(unit).__name__
    return lambda: setattr(made, "__name__", name)


def gather_ahead(unit: FSDPModule) -> None:
    """Prefetch in backward without waiting.

    Without ``_set_unshard_async_op`` in 2.13 or later, which older releases don't have: UsageError.
    """
    name = "_set_unshard_async_op"
    if hasattr(unit, name):
        unit._set_unshard_async_op(True)
    elif torch.__version__ >= SEEN_BY:
        raise absent(FSDPModule, name, "lets a unit be gathered while another one computes")


def forget_engine(module: Module) -> None:
    """Remove the engine's hooks, attributes and class from a module."""
    for kind in MODULE_HOOKS:
        hooks = getattr(module, kind)
        for key in [
            key
            for key, hook in hooks.items()
            if (getattr(hook, "__module__", "") or "").startswith(ENGINE)
        ]:
            del hooks[key]
    for name in LEFT_BY_ENGINE:
        vars(module).pop(name, None)
    _composable_state._module_state_mapping.pop(module, None)
    if isinstance(module, FSDPModule):
        module.__class__ = original_class(module)  # type: ignore[assignment]
