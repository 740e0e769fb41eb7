"""Private names of torch that this package uses; nothing else in it uses one.

Names of tensors and modules were seen in torch 2.6 to 2.13. Names of ``fully_shard``, from ``Pair``
on, were seen in 2.13 (the package needs 2.6). Without one of these: AttributeError with its name,
when a model is divided, computes or is made whole; UsageError where nothing else would fail.
"""

from __future__ import annotations

import functools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from operator import attrgetter
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import _composable_state
from torch.distributed._composable.contract import REGISTRY_KEY, STATE_KEY
from torch.distributed.fsdp import FSDPModule
from torch.nn import Module
from torchbus.compat.required import absent, private, require
from torchbus.plugin import Unsupported

from torchbus_strategy.compat import buffers, tensor_hooks

parameters: Callable[[Module], dict[str, Any]] = attrgetter("_parameters")
temporary_buffers: Callable[[Module], set[str]] = attrgetter("_non_persistent_buffers_set")
"""A module's tensors by name, or such names. Without one: AttributeError when a model is divided.
"""

step_post_hooks: Callable[[Any], OrderedDict[int, Any]] = attrgetter("_optimizer_step_post_hooks")
"""An optimizer's hooks, in the order of their calls.

Without it: AttributeError when an optimizer is made.
"""

RESET_METHODS = ("reset_parameters", "_reset_parameters")
"""Methods that give a module its first values; the second is MultiheadAttention's.

Without the second: UsageError, if such a module is on the meta device.
"""

call_when_accumulated: Callable[[Tensor, Callable[[Tensor], None]], object] = (
    Tensor.register_post_accumulate_grad_hook
)
"""Torch's method for any tensor. DTensor's method is replaced by one that refuses."""

DATA: Any = torch._C.TensorBase.data
"""The attribute ``data`` of all tensors. Without it: AttributeError when the package is imported.
"""

as_plain_tensors: Callable[[], AbstractContextManager[None]] = torch._C.DisableTorchFunctionSubclass
"""Without it: AttributeError when the package is imported."""

current_graph_task_id: Callable[[], int] = private(
    torch._C, "_current_graph_task_id", "distinguishes a forward inside a backward from the loop's"
)
"""Without it: UsageError at the first forward."""

MODULE_HOOKS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_pre_hooks",
    "_backward_hooks",
    "_state_dict_pre_hooks",
    "_state_dict_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
"""A module's tables of hooks. Without one: AttributeError at the end of the session."""


def share_backward_hooks(old: Any, new: Any) -> None:
    """Give ``new`` the hooks of ``old``, so that ``handle.remove()`` works on both."""
    if tensor_hooks(old):
        new._backward_hooks = tensor_hooks(old)


def count_of_collectives() -> Callable[[], int]:
    """Return a function that returns how many collectives the main process group has begun.

    Without ``_get_sequence_number_for_group``: AttributeError when a strategy starts.
    """
    count: Callable[[], int] = dist.group.WORLD._get_sequence_number_for_group  # type: ignore[union-attr]
    return count


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

    ``UsedParameters`` adds notes on gradients. ``ShardWrites`` adds the versions that it has seen.
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
    """Let ``find`` run once for each model, and cache its result in the engine's state.

    The result stays the same until the end of the block.
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
    """Return the model's units, the model first."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


@_once
def groups_in(model: Module) -> list[Group]:
    """Return the units' groups of parameters: one for each, or several in newer releases."""
    states = [unit._get_fsdp_state() for unit in units_in(model)]
    return [
        group
        for state in states
        for group in getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
        if group is not None
    ]


@_once
def pairs_in(model: Module) -> list[Pair]:
    """Return the parameters, with ``sharded_param`` and, once gathered, ``_unsharded_param``."""
    pairs = [pair for group in groups_in(model) for pair in group.fsdp_params]
    for kind in {type(pair) for pair in pairs}:
        require(kind, "_unsharded_param", "holds the whole parameters while they are gathered")
    return pairs


@_once
def names_in(model: Module) -> set[str]:
    """Return the names that the model's parameters had when it was sharded."""
    return {name for name, _ in model.named_parameters(remove_duplicate=False)}


@_once
def places_in(model: Module) -> list[tuple[dict[str, nn.Parameter | None], str, Pair]]:
    """Return where the model's modules held parameters when it was sharded: dicts and names."""
    pair_of = {id(pair.sharded_param): pair for pair in pairs_in(model)}
    return [
        (there, name, pair_of[id(one)])
        for there in map(parameters, model.modules())
        for name, one in there.items()
        if id(one) in pair_of
    ]


@_once
def buffers_in(model: Module) -> list[dict[str, Tensor | None]]:
    """Return the buffer dict of each of the model's modules."""
    return [buffers(module) for module in model.modules()]


def gathered_in(model: Module) -> list[tuple[Tensor, nn.Parameter]]:
    """Return the whole tensors that the engine has made, each with this rank's shard."""
    found = [(unsharded(pair), pair.sharded_param) for pair in pairs_in(model)]
    return [(whole, part) for whole, part in found if whole is not None]


def unsharded(pair: Pair) -> nn.Parameter | None:
    """Return the whole parameter, or None before it is gathered for the first time."""
    return getattr(pair, "_unsharded_param", None)


def reduce_late(model: Module) -> None:
    """Reduce gradients that were made after their unit had reduced its own. All ranks call it.

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
        return  # the first call makes what torch resets, and there was none yet
    unit.reset_iter_state()
    for whole, _ in gathered_in(model):
        whole.grad = None


def original_class(module: Module) -> type[Module]:
    """Return the script's class of a divided module."""
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


def gathered_now(group: Group) -> list[tuple[Pair, nn.Parameter]]:
    """Return the parameters with their whole tensors; an empty list while they are not gathered."""
    gathered = [pair for pair in group.fsdp_params if pair.sharded_state.name == "UNSHARDED"]
    found = [(pair, unsharded(pair)) for pair in gathered]
    return [(pair, whole) for pair, whole in found if whole is not None]


def is_in_forward(group: Group) -> bool:
    """Whether the group's unit is at the end of a forward, for which it was gathered."""
    return bool(group._training_state.name == "FORWARD")


def call_before_reshard(group: Group, call: Callable[[Group], None]) -> Callable[[], None]:
    """Call a function before a group's whole parameters are freed.

    The engine reshards at the end of a forward and of a backward, in compiled models as well.
    Returns a function that undoes this.
    """
    reference = weakref.ref(group)

    def reshard() -> None:
        alive = reference()
        if alive is not None:
            call(alive)
            type(alive).reshard(alive)

    def undo() -> None:
        alive = reference()
        if alive is not None:
            del alive.reshard

    group.reshard = reshard  # type: ignore[method-assign]
    return undo


def gather_after_writes(group: Group) -> None:
    """Let later gathers wait for the writes that are queued on the device.

    Torch's engine waits only at the beginning of a forward.
    """
    context = group.comm_ctx
    context.all_gather_copy_in_stream.wait_stream(context.device_handle.current_stream())


def let_go_of_early(module: Module) -> None:
    """Drop prefetched parameters that were not used, because their values are stale.

    Their unit is gathered again.
    """
    for group in groups_in(module):
        if group._all_gather_result is not None:
            work = group._all_gather_result.all_gather_work
            if work is not None:
                work.wait()
            group._all_gather_result = None
