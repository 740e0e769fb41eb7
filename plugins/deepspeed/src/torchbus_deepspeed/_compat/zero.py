"""ZeRO's optimizers, and the parameters and modules that they change.

DeepSpeed's were seen in 0.19.8, torch's in 2.6 to 2.13. Without one of DeepSpeed's: UsageError
or AttributeError, when the first engine is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from operator import attrgetter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.nn import Module
from torchbus.compat.required import private

COMM = "deepspeed.comm.torch"
"""The module. ``import deepspeed.comm.torch as x`` gives torch itself."""

PARTITION_NUMEL = "partition_numel"
"""A method of parameters under stage 3."""

version: Callable[[Tensor], int] = attrgetter("_version")
"""Grows with each change in place. Without it: AttributeError when the first engine is made."""

will_execute: Callable[[Node], bool] = private(
    torch._C, "_will_engine_execute_node", "tells which parameters a backward will reach"
)
"""Without it: UsageError at the first backward."""

as_plain_tensors: Callable[[], AbstractContextManager[None]] = torch._C.DisableTorchFunctionSubclass
"""Without it: AttributeError when the package is imported."""

SHALLOW_COPY = "_has_compatible_shallow_copy_type"
"""What ``model.to`` asks of two tensors. Without it: Unsupported at ``model.to`` under stage 3."""


# ZeRO's optimizers ------------------------------------------------------------------------------


def groups_of(zero: Any, stage: int) -> list[list[nn.Parameter]]:
    """The trained parameters, by flat group."""
    found: list[list[nn.Parameter]] = (
        zero.fp16_groups if stage == 3 else zero.round_robin_bit16_groups
    )
    return found


def masters_of(zero: Any, stage: int) -> list[Tensor]:
    """This rank's flat parts of the parameters, as the optimizer steps them."""
    found: list[Tensor] = (
        zero.fp32_partitioned_groups_flat if stage == 3 else zero.single_partition_of_fp32_groups
    )
    return found


def shape_of(parameter: Tensor) -> torch.Size:
    """Its whole shape; under stage 3 the tensor itself is empty most of the time."""
    found: torch.Size = getattr(parameter, "ds_shape", parameter.shape)
    return found


def begin_backward(zero: Any, stage: int) -> None:
    """Each backward counts as the first one: what was before is kept elsewhere."""
    zero.clear_backward_seen_flag()
    zero.micro_step_id = 0 if stage == 3 else -1
    zero.set_gradient_accumulation_boundary(True)
    zero.backward_prologue()


def take_gradient(zero: Any, stage: int, parameter: Tensor, group: int) -> None:
    """Give ZeRO one gradient. It goes to a bucket, which is reduced when it is full."""
    if stage == 3:
        zero.reduce_ready_partitions_and_remove_grads(parameter)
    else:
        zero.process_gradients(parameter, group)


def end_backward(engine: Any, zero: Any) -> None:
    """Reduce what is left in the buckets. All ranks call it."""
    engine.allreduce_gradients()
    zero.backward_epilogue()


def averaged(zero: Any, group: int) -> Tensor:
    """Take this rank's flat part of the averaged gradients out of ZeRO: a copy."""
    parts: Sequence[Tensor] = zero.averaged_gradients[group]
    flat = torch.cat([part.reshape(-1) for part in parts])
    zero.averaged_gradients[group] = None
    return flat.clone() if len(parts) == 1 else flat


def give_averaged(zero: Any, group: int, flat: Tensor) -> None:
    """Put it back for a step."""
    zero.averaged_gradients[group] = [flat]


def give_zeros(parameter: Any) -> None:
    """Give a parameter a gradient of zeros, of its whole shape also while it is empty itself."""
    data = parameter.data
    shape, dtype, device = shape_of(parameter), parameter.dtype, parameter.device
    parameter.data = torch.zeros(shape, dtype=dtype, device=device)
    parameter.grad = torch.zeros_like(parameter)
    parameter.data = data


# Stage 3's hooks around a module's backward count on these attributes of the module. Without them:
# the second backward of a retained graph raises RuntimeError.
COUNTS = ("applied_pre_backward_ref_cnt", "ds_grads_remaining")


def backward_counts(model: Module) -> list[tuple[Module, str, int]]:
    """What stage 3 counts down in a backward."""
    return [
        (module, name, vars(module)[name])
        for module in model.modules()
        for name in COUNTS
        if name in vars(module)
    ]


def put_backward_counts(counts: Sequence[tuple[Module, str, int]]) -> None:
    """Let the same graph run once more."""
    for module, name, count in counts:
        setattr(module, name, count)


def free_parameters(zero: Any, model: Module) -> None:
    """Let go of what stage 3 has gathered for a backward that has failed. Sends nothing."""
    zero.parameter_offload.release_backward_leftovers()
    zero.parameter_offload.partition_all_parameters()
    put_backward_counts([(module, name, 0) for module, name, _ in backward_counts(model)])


def remove_hooks(zero: Any) -> None:
    """ZeRO's own hooks on gradients: gradients come to it by ``take_gradient``."""
    for hook in zero._grad_acc_hooks:
        hook.remove()
    zero._grad_acc_hooks.clear()


def gradient_node(parameter: Any, stage: int) -> Node:
    """The node that accumulates a parameter's gradient, whose shape it notes when it is made."""
    if stage == 3:
        parameter.all_gather()
    with torch.enable_grad():
        view = parameter.expand_as(parameter).grad_fn
    assert view is not None
    node: Node | None = view.next_functions[0][0]
    assert node is not None
    if stage == 3:
        parameter.partition()
    return node


# Values ------------------------------------------------------------------------------------------


def direct_parameters(module: Module) -> dict[str, Any]:
    """A module's parameters, by name, without DeepSpeed's gathering of those that are read."""
    return dict(module._parameters.items())


def lp_parts(zero: Any) -> list[Tensor]:
    """This rank's flat parts of the model's own tensors, stages 1 and 2."""
    return [
        parts[dist.get_rank(group)]
        for parts, group in zip(
            zero.parallel_partitioned_bit16_groups, zero.real_dp_process_group, strict=True
        )
    ]


def pairs_of_parts(zero: Any, stage: int) -> list[tuple[Tensor, Tensor]]:
    """What the optimizer steps, and the model's own part of the same elements."""
    parts = zero.fp16_partitioned_groups_flat if stage == 3 else lp_parts(zero)
    pairs = zip(masters_of(zero, stage), parts, strict=True)
    return [(master, part) for master, part in pairs if part is not None]  # None: it is on a disk


def share_memory(zero: Any, stage: int) -> None:
    """Let the parts that the optimizer steps be the model's own, if dtype and device are.

    So a loop that changes parameters in place (clamping) changes what is stepped, too.
    """
    for master, part in pairs_of_parts(zero, stage):
        if (master.dtype, master.device) == (part.dtype, part.device):
            master.data = part


@torch.no_grad()
def take_changes(zero: Any, stage: int) -> None:
    """The same for parts in another dtype: elements that are not what they were rounded to."""
    for master, part in pairs_of_parts(zero, stage):
        if master.data_ptr() != part.data_ptr():
            ours = part.to(master.device)
            changed = master.to(ours.dtype) != ours
            master.data = torch.where(changed, ours.to(master.dtype), master)


def is_gathered(parameter: Any) -> bool:
    """Whether a parameter under stage 3 has its values now."""
    status = getattr(parameter, "ds_status", None)
    return status is not None and str(status.name) == "AVAILABLE"


def whole_parameter(parameter: Any) -> Tensor:
    """A copy of the whole parameter under stage 3. All ranks call it."""
    part = parameter.ds_tensor.detach().reshape(-1).to(parameter.device)  # it may be offloaded
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, part)
    return torch.cat(parts)[: parameter.ds_numel].view(parameter.ds_shape)


@torch.no_grad()
def put_parameter(parameter: Any, value: Tensor) -> None:
    """Write a whole value into this rank's part, and into the parameter where it is gathered."""
    mine, part = _local_elements(parameter, value)
    part.copy_(mine)
    if is_gathered(parameter):
        parameter.data.copy_(value.reshape(parameter.shape))


def equals_local_part(parameter: Any) -> bool:
    """Whether a gathered parameter is equal to this rank's part of it, which may be offloaded."""
    mine, part = _local_elements(parameter, parameter)
    return torch.equal(mine, part.to(mine.device))


def _local_elements(parameter: Any, value: Tensor) -> tuple[Tensor, Tensor]:
    """This rank's elements of a whole value, and the memory that keeps them."""
    part, rank = parameter.ds_tensor, dist.get_rank()
    mine = value.detach().reshape(-1)[rank * part.numel() : (rank + 1) * part.numel()]
    return mine, part.data.reshape(-1)[: mine.numel()]


def make_plain(parameter: Any, value: Tensor) -> None:
    """Give a parameter a tensor of its own."""
    parameter.__class__ = nn.Parameter
    parameter.data = value
    parameter.grad = None


def unwrap_parameters(module: Any) -> None:
    """Stage 3 replaces the dict of a module's parameters by one that gathers them."""
    if type(module._parameters) is not dict:
        module._parameters = dict(module._parameters)
