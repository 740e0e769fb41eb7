"""Imports DeepSpeed, adapts its environment, and reports the features of the installed release.

DeepSpeed's were seen in 0.19.8, torch's in 2.6 to 2.13. Without one of DeepSpeed's: UsageError
or AttributeError, when the first engine is made.
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
from torch import Tensor
from torch.nn import Module
from torch.optim import Adagrad, Optimizer
from torchbus.compat.required import require
from torchbus.plugin import mark_internal, muted

COMM = "deepspeed.comm.torch"
"""The module. ``import deepspeed.comm.torch as x`` gives torch itself."""


@contextmanager
def quiet() -> Iterator[None]:
    """Silence DeepSpeed's log of its start and of untested optimizers on every rank."""
    logger = logging.getLogger("DeepSpeed")
    only_errors = _OnlyErrors()
    logger.addFilter(only_errors)
    try:
        yield
    finally:
        logger.removeFilter(only_errors)


class _OnlyErrors(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR


def deepspeed() -> Any:
    """Import and return the package, which takes seconds."""
    with quiet():
        import deepspeed

        return deepspeed


def load() -> None:
    """Import it, with the modules that it imports when it makes its first engine.

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


def broadcasts() -> list[tuple[Any, str, Callable[[Any], Callable[..., None]]]]:
    """Replacements for broadcasts of parameters that are already the same: class, method, function.

    These methods fail on 0-dim tensors, and on ones in another memory format.
    """
    engine, init = deepspeed().DeepSpeedEngine, deepspeed().zero.Init
    require(engine, "_broadcast_model", "sends rank 0's parameters")
    require(init, "_zero_init_param", "sends rank 0's parameters, and divides them")

    def divide(self: Any, parameter: Any) -> None:
        self._convert_to_deepspeed_param(parameter)
        parameter.partition()

    def leave(self: Any) -> None:
        """Do nothing: torchbus has broadcast them."""

    return [
        (engine, "_broadcast_model", lambda _: leave),
        (init, "_zero_init_param", lambda _: divide),
    ]


def hide_model(engine: Any, model: Module) -> None:
    """Exclude the model from the submodules of DeepSpeed's engine, which is a module too."""
    engine._modules.pop("module", None)
    vars(engine)["module"] = model
    mark_internal(engine)


def keep_optimizer(zero: Any, optimizer: Optimizer) -> None:
    """Let DeepSpeed step the given optimizer.

    It would replace torch's Adagrad by another one, with one group for all shards.
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
    """Let DeepSpeed use the CPU, also on hosts with a GPU. Returns a function that undoes it."""
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
    """Release DeepSpeed's reference to the process group: a next session makes a new one."""
    from deepspeed.comm import comm
    from deepspeed.utils import groups

    comm.cdb = None
    for name, value in list(vars(groups).items()):
        if name.startswith("_") and isinstance(value, dist.ProcessGroup):
            setattr(groups, name, None)
    gc.collect()  # engines are in reference cycles with groups, whose threads a fork would lack


def average(tensors: Sequence[Tensor]) -> None:
    """Replace each tensor by its mean over ranks, by one of DeepSpeed's collectives per dtype."""
    from deepspeed import comm

    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        alike = [tensor for tensor in tensors if tensor.dtype == dtype]
        flat = torch.cat([tensor.reshape(-1) for tensor in alike])
        comm.all_reduce(flat)
        flat /= dist.get_world_size()
        sizes = [tensor.numel() for tensor in alike]
        for tensor, part in zip(alike, flat.split(sizes), strict=True):
            tensor.copy_(part.view_as(tensor))
