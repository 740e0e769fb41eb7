"""Access to ZeRO's optimizers, and to the parameters and modules that they change.

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

PARTITION_NUMEL = "partition_numel"
"""A method of parameters under stage 3."""

version: Callable[[Tensor], int] = attrgetter("_version")
"""Grows with each change in place. Without it: AttributeError when the first engine is made."""

will_execute: Callable[[Node], bool] = private(
    torch._C, "_will_engine_execute_node", "finds the parameters that a backward will reach"
)
"""Without it: UsageError at the first backward."""

as_plain_tensors: Callable[[], AbstractContextManager[None]] = torch._C.DisableTorchFunctionSubclass
"""Without it: AttributeError when the package is imported."""

SHALLOW_COPY = "_has_compatible_shallow_copy_type"
"""What ``model.to`` asks of two tensors. Without it: Unsupported at ``model.to`` under stage 3."""


# ZeRO's optimizers ------------------------------------------------------------------------------


def groups_of(zero: Any, stage: int) -> list[list[nn.Parameter]]:
    """Return the trained parameters by flat group."""
    found: list[list[nn.Parameter]] = (
        zero.fp16_groups if stage == 3 else zero.round_robin_bit16_groups
    )
    return found


def masters_of(zero: Any, stage: int) -> list[Tensor]:
    """Return this rank's flat shards of the parameters, as the optimizer steps them."""
    found: list[Tensor] = (
        zero.fp32_partitioned_groups_flat if stage == 3 else zero.single_partition_of_fp32_groups
    )
    return found


def shape_of(parameter: Tensor) -> torch.Size:
    """Return its whole shape; under stage 3 the tensor is empty most of the time."""
    found: torch.Size = getattr(parameter, "ds_shape", parameter.shape)
    return found


def begin_backward(zero: Any, stage: int) -> None:
    """Make each backward count as the first one: earlier gradients are stored elsewhere."""
    zero.clear_backward_seen_flag()
    zero.micro_step_id = 0 if stage == 3 else -1
    zero.set_gradient_accumulation_boundary(True)
    zero.backward_prologue()


def take_gradient(zero: Any, stage: int, parameter: Tensor, group: int) -> None:
    """Hand one gradient to ZeRO, which puts it into a bucket and reduces full buckets."""
    if stage == 3:
        zero.reduce_ready_partitions_and_remove_grads(parameter)
    else:
        zero.process_gradients(parameter, group)


def end_backward(engine: Any, zero: Any) -> None:
    """Reduce the remaining buckets. All ranks call it."""
    engine.allreduce_gradients()
    zero.backward_epilogue()


def averaged(zero: Any, group: int) -> Tensor:
    """Return a copy of this rank's flat shard of the averaged gradients."""
    parts: Sequence[Tensor] = zero.averaged_gradients[group]
    flat = torch.cat([part.reshape(-1) for part in parts])
    zero.averaged_gradients[group] = None
    return flat.clone() if len(parts) == 1 else flat


def give_averaged(zero: Any, group: int, flat: Tensor) -> None:
    """Set this rank's flat shard of the gradients for a step."""
    zero.averaged_gradients[group] = [flat]


def give_zeros(parameter: Any) -> None:
    """Set a gradient of zeros with the whole shape, also while the parameter is empty."""
    data = parameter.data
    shape, dtype, device = shape_of(parameter), parameter.dtype, parameter.device
    parameter.data = torch.zeros(shape, dtype=dtype, device=device)
    parameter.grad = torch.zeros_like(parameter)
    parameter.data = data


# Stage 3's hooks around a module's backward count on these attributes of the module. Without them:
# the second backward of a retained graph raises RuntimeError.
COUNTS = ("applied_pre_backward_ref_cnt", "ds_grads_remaining")


def backward_counts(model: Module) -> list[tuple[Module, str, int]]:
    """Return the counters that stage 3 decrements in a backward."""
    return [
        (module, name, vars(module)[name])
        for module in model.modules()
        for name in COUNTS
        if name in vars(module)
    ]


def put_backward_counts(counts: Sequence[tuple[Module, str, int]]) -> None:
    """Let the same graph run again."""
    for module, name, count in counts:
        setattr(module, name, count)


def free_parameters(zero: Any, model: Module) -> None:
    """Free the parameters that stage 3 has gathered for a failed backward, without a collective."""
    zero.parameter_offload.release_backward_leftovers()
    zero.parameter_offload.partition_all_parameters()
    put_backward_counts([(module, name, 0) for module, name, _ in backward_counts(model)])


def remove_hooks(zero: Any) -> None:
    """Remove ZeRO's gradient hooks: gradients reach it through ``take_gradient``."""
    for hook in zero._grad_acc_hooks:
        hook.remove()
    zero._grad_acc_hooks.clear()


def gradient_node(parameter: Any, stage: int) -> Node:
    """Return the node that accumulates a parameter's gradient; it records the shape at creation."""
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
    """Return a module's parameters by name, without gathering them."""
    return dict(module._parameters.items())


def lp_parts(zero: Any) -> list[Tensor]:
    """Return this rank's flat shards of the model's tensors, stages 1 and 2."""
    return [
        parts[dist.get_rank(group)]
        for parts, group in zip(
            zero.parallel_partitioned_bit16_groups, zero.real_dp_process_group, strict=True
        )
    ]


def pairs_of_parts(zero: Any, stage: int) -> list[tuple[Tensor, Tensor]]:
    """Yield the tensors that the optimizer steps, with the model's tensors of the same elements."""
    parts = zero.fp16_partitioned_groups_flat if stage == 3 else lp_parts(zero)
    pairs = zip(masters_of(zero, stage), parts, strict=True)
    return [(master, part) for master, part in pairs if part is not None]  # None: it is on a disk


def share_memory(zero: Any, stage: int) -> None:
    """Alias the optimizer's shards to the model's, if dtype and device are the same.

    So a loop that changes parameters in place (clamping) changes what is stepped, too.
    """
    for master, part in pairs_of_parts(zero, stage):
        if (master.dtype, master.device) == (part.dtype, part.device):
            master.data = part


@torch.no_grad()
def take_changes(zero: Any, stage: int) -> None:
    """Copy elements that differ from their rounded value, for shards in another dtype."""
    for master, part in pairs_of_parts(zero, stage):
        if master.data_ptr() != part.data_ptr():
            ours = part.to(master.device)
            changed = master.to(ours.dtype) != ours
            master.data = torch.where(changed, ours.to(master.dtype), master)


def is_gathered(parameter: Any) -> bool:
    """Whether a parameter under stage 3 is gathered now."""
    status = getattr(parameter, "ds_status", None)
    return status is not None and str(status.name) == "AVAILABLE"


def whole_parameter(parameter: Any) -> Tensor:
    """Return a copy of the whole parameter under stage 3. All ranks call it."""
    part = parameter.ds_tensor.detach().reshape(-1).to(parameter.device)  # it may be offloaded
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, part)
    return torch.cat(parts)[: parameter.ds_numel].view(parameter.ds_shape)


@torch.no_grad()
def put_parameter(parameter: Any, value: Tensor) -> None:
    """Write a whole value into this rank's shard, and into the parameter if it is gathered."""
    mine, part = _local_elements(parameter, value)
    part.copy_(mine)
    if is_gathered(parameter):
        parameter.data.copy_(value.reshape(parameter.shape))


def equals_local_part(parameter: Any) -> bool:
    """Whether a gathered parameter equals this rank's shard of it, which may be offloaded."""
    mine, part = _local_elements(parameter, parameter)
    return torch.equal(mine, part.to(mine.device))


def _local_elements(parameter: Any, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return this rank's elements of a whole value, and the memory of its shard."""
    part, rank = parameter.ds_tensor, dist.get_rank()
    mine = value.detach().reshape(-1)[rank * part.numel() : (rank + 1) * part.numel()]
    return mine, part.data.reshape(-1)[: mine.numel()]


def make_plain(parameter: Any, value: Tensor) -> None:
    """Give a parameter separate memory."""
    parameter.__class__ = nn.Parameter
    parameter.data = value
    parameter.grad = None


def unwrap_parameters(module: Any) -> None:
    """Restore the plain dict of a module's parameters; stage 3's dict gathers them."""
    if type(module._parameters) is not dict:
        module._parameters = dict(module._parameters)
