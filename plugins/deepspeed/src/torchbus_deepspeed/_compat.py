"""Private names of DeepSpeed and torch; nothing else in this package uses one.

This module imports DeepSpeed and adapts its environment, reports the features of the installed
release, and accesses ZeRO's optimizers and the parameters and modules that they change. DeepSpeed's
names were seen in 0.19.8, torch's in 2.6 to 2.13. Without one of DeepSpeed's names: UsageError or
AttributeError when the first engine is made.
"""

from __future__ import annotations

import gc
import importlib
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.nn import Module
from torch.optim import Adagrad, Optimizer
from torchbus.compat.required import private, require
from torchbus.plugin import mark_internal

from torchbus_strategy.user_code import muted

COMM = "deepspeed.comm.torch"
"""The name of a module, because ``import deepspeed.comm.torch as x`` binds torch itself."""


@contextmanager
def quiet() -> Iterator[None]:
    """Silence DeepSpeed's log of its start and of untested optimizers on every rank."""

    def only_errors(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR

    logger = logging.getLogger("DeepSpeed")
    logger.addFilter(only_errors)
    try:
        yield
    finally:
        logger.removeFilter(only_errors)


def deepspeed() -> Any:
    """Import and return the package, which takes seconds."""
    with quiet():
        import deepspeed

        return deepspeed


def load() -> None:
    """Import DeepSpeed, and the modules that it imports when it makes its first engine.

    Muon's kernels need torch's compiler, whose import takes longer than DeepSpeed's.
    """
    deepspeed()
    with quiet(), suppress(ImportError):
        from deepspeed.runtime.zero.muon import muon_optimizer  # noqa: F401


def comm_module() -> ModuleType:
    """Return the module with ``build_shm_op``, which compiles a collective for CPUs."""
    deepspeed()
    module = sys.modules[COMM]
    require(module, "build_shm_op", "builds DeepSpeed's shared-memory collective")
    return module


def no_deprecations() -> AbstractContextManager[None]:
    """Silence warnings about collectives that torch 2.13 deprecates and DeepSpeed calls."""
    return muted("`torch.distributed", FutureWarning)


ALLOWED = (torch.float16, torch.bfloat16, torch.float32, None)


def replacements() -> list[tuple[Any, str, Callable[[Any], Callable[..., None]]]]:
    """Return what a session replaces in DeepSpeed: (class, method, function that makes a new one).

    DeepSpeed's broadcasts are not needed, as the parameters are already equal, and they fail on
    0-dim tensors and on tensors in another memory format. Stage 3 refuses models in float64 or with
    quantised weights if the device supports float16, although it uses this dtype only for the
    check.
    """
    engine, init = deepspeed().DeepSpeedEngine, deepspeed().zero.Init
    require(engine, "_broadcast_model", "sends rank 0's parameters")
    require(init, "_zero_init_param", "sends rank 0's parameters, and divides them")
    require(init, "_set_dtype", "checks the dtype of the model")

    def divide(self: Any, parameter: Any) -> None:
        self._convert_to_deepspeed_param(parameter)
        parameter.partition()

    def leave(self: Any) -> None:
        """Do nothing, as torchbus has broadcast the parameters."""

    def allow_any_dtype(choose: Callable[..., None]) -> Callable[..., None]:
        def set_dtype(self: Any, config: Any, dtype: torch.dtype | None) -> None:
            choose(self, config, dtype if dtype in ALLOWED else torch.float32)

        return set_dtype

    return [
        (engine, "_broadcast_model", lambda _: leave),
        (init, "_zero_init_param", lambda _: divide),
        (init, "_set_dtype", allow_any_dtype),
    ]


def hide_model(engine: Any, model: Module) -> None:
    """Exclude the model from the submodules of DeepSpeed's engine, which is a module too."""
    engine._modules.pop("module", None)
    vars(engine)["module"] = model
    mark_internal(engine)


def keep_optimizer(zero: Any, optimizer: Optimizer) -> None:
    """Let DeepSpeed step the given optimizer.

    DeepSpeed replaces torch's Adagrad with a new one, which has one group for all shards.
    """
    made = zero.optimizer
    if made is not optimizer and type(made) is Adagrad:
        optimizer.state.update(made.state)
        zero.optimizer = optimizer
        if hasattr(zero, "_link_all_hp_params"):  # stages 1 and 2, for each group
            zero._link_all_hp_params()


# What the installed release has -----------------------------------------------------------------


def zero_keys() -> set[str]:
    """Return the keys of ``zero_optimization``."""
    deepspeed()
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    fields = DeepSpeedZeroConfig.model_fields
    return set(fields) | {field.alias for field in fields.values() if field.alias}


def section_keys() -> dict[str, set[str]]:
    """Return the keys of a config's object sections, by the section's name."""
    deepspeed()
    from deepspeed.runtime import precision_config
    from deepspeed.runtime.zero import offload_config

    models = {
        "bf16": precision_config.DeepSpeedBF16Config,
        "fp16": precision_config.DeepSpeedFP16Config,
        "offload_optimizer": offload_config.DeepSpeedZeroOffloadOptimizerConfig,
        "offload_param": offload_config.DeepSpeedZeroOffloadParamConfig,
    }
    return {name: set(model.model_fields) for name, model in models.items()}


def has_async_io() -> bool:
    deepspeed()
    from deepspeed.ops.op_builder import AsyncIOBuilder

    return bool(AsyncIOBuilder().is_compatible(verbose=False))


def optimizer_class(module: str, name: str) -> Any:
    """Return an optimizer class of DeepSpeed."""
    deepspeed()
    found = importlib.import_module(module)
    require(found, name, "steps in place of the loop's optimizer")
    return getattr(found, name)


def takes_fp16() -> bool:
    """Whether DeepSpeed supports fp16 on the device that it has found."""
    return bool(deepspeed().accelerator.get_accelerator().is_fp16_supported())


def use_cpu() -> Callable[[], None]:
    """Let DeepSpeed use the CPU, also on hosts with a GPU. Returns a function that undoes this."""
    deepspeed()
    from deepspeed.accelerator import real_accelerator
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

    before = real_accelerator.ds_accelerator
    if before is None or before.device_name() != "cpu":
        real_accelerator.ds_accelerator = CPU_Accelerator()
    return lambda: setattr(real_accelerator, "ds_accelerator", before)


def open_comm() -> None:
    """Let DeepSpeed find torch's process group."""
    from deepspeed import comm

    if not comm.is_initialized():
        comm.init_distributed(dist_init_required=False, verbose=False)


def close_comm() -> None:
    """Release DeepSpeed's references to process groups, as the next session makes new ones."""
    from deepspeed.comm import comm
    from deepspeed.utils import groups

    comm.cdb = None
    for name, value in list(vars(groups).items()):
        if name.startswith("_") and isinstance(value, dist.ProcessGroup):
            setattr(groups, name, None)
    gc.collect()  # engines are in reference cycles with groups, whose threads a fork would lack


def average(tensors: Sequence[Tensor]) -> None:
    """Replace each tensor with its mean over ranks, by one DeepSpeed collective for each dtype.

    All ranks must call this.
    """
    from deepspeed import comm

    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        alike = [tensor for tensor in tensors if tensor.dtype == dtype]
        flat = torch.cat([tensor.reshape(-1) for tensor in alike])
        comm.all_reduce(flat)
        flat /= dist.get_world_size()
        sizes = [tensor.numel() for tensor in alike]
        for tensor, part in zip(alike, flat.split(sizes), strict=True):
            tensor.copy_(part.view_as(tensor))


MODULE_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
"""The tables of a module's hooks. Without one: AttributeError at the end of the session."""

HOOKS_WITH_KWARGS = "_forward_pre_hooks_with_kwargs"
"""The set of forward pre-hooks that accept keyword arguments.

Without it: AttributeError at a first forward.
"""


def hook_tables(module: Module) -> list[dict[int, Any]]:
    """Return the dicts of hooks that run around a module's forward and backward."""
    return [getattr(module, name) for name in MODULE_HOOKS]


def compiled_in(model: Module) -> Module | None:
    """Return the submodule whose calls are compiled, or None.

    Without ``_orig_mod`` or ``_compiled_call_impl``: torch's error at its first forward.
    """
    for module in model.modules():
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None):
            return getattr(module, "_orig_mod", module)
    return None


def pre_hooks(module: Module) -> dict[int, Callable[..., Any]]:
    """Return the hooks that run before a module's forward."""
    hooks: dict[int, Callable[..., Any]] = getattr(module, MODULE_HOOKS[0])
    return hooks


def run_pre_hooks(
    module: Module, known: set[int], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """Run the pre-hooks that were added during this call, which torch runs only from the next on.

    Returns the arguments for the forward.
    """
    for number, hook in list(pre_hooks(module).items()):
        if number not in known and number in getattr(module, HOOKS_WITH_KWARGS):
            args, kwargs = hook(module, args, kwargs) or (args, kwargs)
        elif number not in known:
            made = hook(module, args)
            args = args if made is None else made if isinstance(made, tuple) else (made,)
    return args, kwargs


PARTITION_NUMEL = "partition_numel"
"""The name of a method that parameters have under stage 3."""

will_execute: Callable[[Node], bool] = private(
    torch._C, "_will_engine_execute_node", "finds the parameters that a backward will reach"
)
"""Whether a backward that is running will reach a node.

Without it: UsageError at the first backward.
"""

as_plain_tensors: Callable[[], AbstractContextManager[None]] = torch._C.DisableTorchFunctionSubclass
"""A context in which torch ignores subclasses of Tensor.

Without it: AttributeError when the package is imported.
"""

SHALLOW_COPY = "_has_compatible_shallow_copy_type"
"""The function by which ``model.to`` compares two tensors.

Without it: Unsupported at ``model.to`` under stage 3.
"""


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
    """Return a parameter's whole shape. Under stage 3 the tensor is empty most of the time."""
    found: torch.Size = getattr(parameter, "ds_shape", parameter.shape)
    return found


def begin_backward(zero: Any, stage: int) -> None:
    """Make each backward count as the first, as the caller stores earlier gradients elsewhere."""
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
    """Reduce the remaining buckets. All ranks must call this."""
    engine.allreduce_gradients()
    zero.backward_epilogue()


def averaged(zero: Any, group: int) -> Tensor:
    """Return a copy of this rank's flat shard of the averaged gradients, and drop ZeRO's."""
    parts: Sequence[Tensor] = zero.averaged_gradients[group]
    flat = torch.cat([part.reshape(-1) for part in parts])
    zero.averaged_gradients[group] = None
    return flat.clone() if len(parts) == 1 else flat


def give_averaged(zero: Any, group: int, flat: Tensor) -> None:
    """Set this rank's flat shard of the gradients for a step."""
    zero.averaged_gradients[group] = [flat]


def give_zeros(parameter: Any) -> None:
    """Set a gradient of zeros with the parameter's whole shape and dtype, even if it is empty."""
    data = parameter.data
    shape, dtype, device = shape_of(parameter), parameter.dtype, parameter.device
    parameter.data = torch.zeros(shape, dtype=dtype, device=device)
    parameter.grad = torch.zeros_like(parameter)
    parameter.data = data


# The attributes in which stage 3's hooks around a module's backward count. Without them, the second
# backward of a retained graph raises RuntimeError.
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
    """Restore the counters, so that the same graph can run again."""
    for module, name, count in counts:
        setattr(module, name, count)


def free_parameters(zero: Any, model: Module) -> None:
    """Free the parameters that stage 3 has gathered for a failed backward, without a collective."""
    zero.parameter_offload.release_backward_leftovers()
    zero.parameter_offload.partition_all_parameters()
    put_backward_counts([(module, name, 0) for module, name, _ in backward_counts(model)])


def remove_hooks(zero: Any) -> None:
    """Remove ZeRO's gradient hooks, because ``take_gradient`` hands over gradients instead."""
    for hook in zero._grad_acc_hooks:
        hook.remove()
    zero._grad_acc_hooks.clear()


def gradient_node(parameter: Any, stage: int) -> Node:
    """Return the node that accumulates a parameter's gradient.

    A new node records the shape, so under stage 3 this gathers the parameter. All ranks must call
    it.
    """
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
    """Return this rank's flat shards of the model's tensors, for stages 1 and 2."""
    return [
        parts[dist.get_rank(group)]
        for parts, group in zip(
            zero.parallel_partitioned_bit16_groups, zero.real_dp_process_group, strict=True
        )
    ]


def pairs_of_parts(zero: Any, stage: int) -> list[tuple[Tensor, Tensor]]:
    """Return each shard that the optimizer steps, with the model's shard of the same elements."""
    parts = zero.fp16_partitioned_groups_flat if stage == 3 else lp_parts(zero)
    pairs = zip(masters_of(zero, stage), parts, strict=True)
    return [(master, part) for master, part in pairs if part is not None]  # None if it is on disk


def share_memory(zero: Any, stage: int) -> None:
    """Alias the optimizer's shards to the model's, if dtype and device are the same.

    So a loop that changes parameters in place (clamping) also changes the stepped shards.
    """
    for master, part in pairs_of_parts(zero, stage):
        if (master.dtype, master.device) == (part.dtype, part.device):
            master.data = part


@torch.no_grad()
def take_changes(zero: Any, stage: int) -> None:
    """Copy elements that the loop has changed to the optimizer's shards in another dtype.

    An element has changed if it differs from the rounded value in the optimizer's shard.
    """
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
    """Return a copy of the whole parameter under stage 3. All ranks must call this."""
    part = parameter.ds_tensor.detach().reshape(-1).to(parameter.device)  # may be offloaded
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
    """Whether a gathered parameter equals this rank's shard, which may be offloaded."""
    mine, part = _local_elements(parameter, parameter)
    return torch.equal(mine, part.to(mine.device))


def _local_elements(parameter: Any, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return this rank's elements of a whole value, and the matching elements of its shard."""
    part, rank = parameter.ds_tensor, dist.get_rank()
    mine = value.detach().reshape(-1)[rank * part.numel() : (rank + 1) * part.numel()]
    return mine, part.data.reshape(-1)[: mine.numel()]


def make_plain(parameter: Any, value: Tensor) -> None:
    """Turn a parameter into a plain one with this value and no gradient."""
    parameter.__class__ = nn.Parameter
    parameter.data = value
    parameter.grad = None


def unwrap_parameters(module: Any) -> None:
    """Restore the plain dict of a module's parameters. Stage 3's dict gathers them on access."""
    if type(module._parameters) is not dict:
        module._parameters = dict(module._parameters)
