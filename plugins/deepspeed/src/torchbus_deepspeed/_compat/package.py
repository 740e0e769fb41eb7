"""The package, its surroundings, and what the installed release has.

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
    """DeepSpeed logs how it starts, and that each optimizer is untested, on every rank."""
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
    """The package, which takes seconds to import."""
    with quiet():
        import deepspeed

        return deepspeed


def load() -> None:
    """Import it with what it imports when it makes its first engine.

    Muon's kernels need torch's compiler, whose import takes longer than DeepSpeed's.
    """
    deepspeed()
    with quiet(), suppress(ImportError):
        from deepspeed.runtime.zero.muon import muon_optimizer  # noqa: F401


def comm_module() -> ModuleType:
    """The module with ``build_shm_op``, which compiles a collective for CPUs."""
    deepspeed()
    module = sys.modules[COMM]
    require(module, "build_shm_op", "builds DeepSpeed's shared-memory collective")
    return module


def no_deprecations() -> AbstractContextManager[None]:
    """DeepSpeed calls collectives of torch by names that torch 2.13 deprecates."""
    return muted("`torch.distributed", FutureWarning)


def broadcasts() -> list[tuple[Any, str, Callable[[Any], Callable[..., None]]]]:
    """What sends the parameters that ranks have in common already: class, method, and what to do
    instead. It takes no tensor without a dimension, nor one in another order of memory.
    """
    engine, init = deepspeed().DeepSpeedEngine, deepspeed().zero.Init
    require(engine, "_broadcast_model", "sends rank 0's parameters")
    require(init, "_zero_init_param", "sends rank 0's parameters, and divides them")

    def divide(self: Any, parameter: Any) -> None:
        self._convert_to_deepspeed_param(parameter)
        parameter.partition()

    def leave(self: Any) -> None:
        """Torchbus has sent them."""

    return [
        (engine, "_broadcast_model", lambda _: leave),
        (init, "_zero_init_param", lambda _: divide),
    ]


def hide_model(engine: Any, model: Module) -> None:
    """Let the model be no part of DeepSpeed's engine, which is a module too."""
    engine._modules.pop("module", None)
    vars(engine)["module"] = model
    mark_internal(engine)


def keep_optimizer(zero: Any, optimizer: Optimizer) -> None:
    """Let DeepSpeed step the optimizer that it was given.

    It puts an Adagrad of its own, with one group for all parts, in the place of torch's.
    """
    made = zero.optimizer
    if made is not optimizer and type(made) is Adagrad:
        optimizer.state.update(made.state)
        zero.optimizer = optimizer
        if hasattr(zero, "_link_all_hp_params"):  # stages 1 and 2, for each group
            zero._link_all_hp_params()


# What the installed release has -----------------------------------------------------------------


def zero_keys() -> set[str]:
    """The keys of ``zero_optimization``."""
    deepspeed()
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    fields = DeepSpeedZeroConfig.model_fields
    return set(fields) | {field.alias for field in fields.values() if field.alias}


def section_keys() -> dict[str, set[str]]:
    """The keys of the sections of a config that hold an object, by the section's name."""
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
    """One of DeepSpeed's optimizers."""
    deepspeed()
    found = importlib.import_module(module)
    require(found, name, "steps in place of the loop's optimizer")
    return getattr(found, name)


def takes_fp16() -> bool:
    """Whether DeepSpeed trains in fp16 on the device that it has found."""
    return bool(deepspeed().accelerator.get_accelerator().is_fp16_supported())


def use_cpu() -> Callable[[], None]:
    """Let DeepSpeed compute on the CPU, also where there is a GPU. Returns what undoes it."""
    deepspeed()
    from deepspeed.accelerator import real_accelerator
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

    before = real_accelerator.ds_accelerator
    if before is None or before.device_name() != "cpu":
        real_accelerator.ds_accelerator = CPU_Accelerator()
    return lambda: setattr(real_accelerator, "ds_accelerator", before)


def open_comm() -> None:
    """DeepSpeed finds torch's process group."""
    from deepspeed import comm

    if not comm.is_initialized():
        comm.init_distributed(dist_init_required=False, verbose=False)


def close_comm() -> None:
    """It lets go of the process group, which ends, so that a next session has its own."""
    from deepspeed.comm import comm
    from deepspeed.utils import groups

    comm.cdb = None
    for name, value in list(vars(groups).items()):
        if name.startswith("_") and isinstance(value, dist.ProcessGroup):
            setattr(groups, name, None)
    gc.collect()  # engines are in cycles with groups, whose threads a fork would not have


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
