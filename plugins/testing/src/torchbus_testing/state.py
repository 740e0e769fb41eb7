"""Checks that torch and this process are unchanged."""

from __future__ import annotations

import os
import signal
import sys
import threading
import types
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch.nn.utils import clip_grad
from torch.optim import Optimizer, lr_scheduler
from torch.utils.data import DataLoader
from torchbus.compat.torch_names import is_hooked
from torchbus.runtime import active

from torchbus_testing.compat import HOOK_TABLES

OWNERS: dict[str, object] = {
    "torch": torch,
    "torch.autograd": torch.autograd,
    "torch.distributed": dist,
    "torch.nn.functional": torch.nn.functional,
    "Tensor": torch.Tensor,
    "Module": torch.nn.Module,
    "DataLoader": DataLoader,
    "Optimizer": Optimizer,
    "LRScheduler": lr_scheduler.LRScheduler,
    "ReduceLROnPlateau": lr_scheduler.ReduceLROnPlateau,
}
ROUTINES = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.GetSetDescriptorType,
    property,
    staticmethod,
    classmethod,
)
REPLACED_BY_TORCH = {"manual_seed"}  # torch replaces it when it loads torch.compile
STREAMS = ("stdin", "stdout", "stderr", "excepthook")
VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "NODE_RANK",
    "OMP_NUM_THREADS",
    "PYTHONPATH",
    "RANK",
    "TORCHBUS_LAUNCH",
    "WORLD_SIZE",
)


def torch_state() -> dict[str, object]:
    """Return, by name, what a session may change in torch and in this process.

    This includes every torch function that a loop calls, hooks, signals, threads, streams, and
    launchers' variables. Pass the result to ``assert_torch_unchanged``.
    """
    return {**_functions(), **_settings_of_torch(), **_process()}


def _functions() -> dict[str, object]:
    """Return torch's functions, also those inside its wrappers, and the hooks."""
    state: dict[str, object] = {
        f"{name}.{attribute}": value
        for name, owner in OWNERS.items()
        for attribute, value in vars(owner).items()
        if issubclass(type(value), ROUTINES) and attribute not in REPLACED_BY_TORCH
    }
    state |= {name: dict(hooks) for name, hooks in HOOK_TABLES.items()}
    for function in (clip_grad.clip_grad_norm_, clip_grad.clip_grad_value_):
        state[f"inside {function.__name__}"] = [
            cell.cell_contents for cell in function.__closure__ or ()
        ]
    for cls in _optimizer_classes():
        state[f"{cls.__module__}.{cls.__qualname__}.step"] = vars(cls).get("step")
        update = cls.__module__.rpartition(".")[2]
        state[f"{cls.__module__}.{update}"] = vars(sys.modules[cls.__module__]).get(update)
    return state


def _settings_of_torch() -> dict[str, object]:
    return {
        "threads of torch": torch.get_num_threads(),
        "process group": dist.is_available() and dist.is_initialized(),
        "default device, dtype": (torch.get_default_device(), torch.get_default_dtype()),
        "autograd, inference": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
    }


def _process() -> dict[str, object]:
    """Return streams, signals, threads, variables and the session of this process."""
    state: dict[str, object] = {f"sys.{name}": getattr(sys, name) for name in STREAMS}
    state |= {
        signal.Signals(number).name: signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    if threading.current_thread() is threading.main_thread():
        state["signal wakeup descriptor"] = fd = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(fd)
    state["threads of torchbus"] = sorted(
        thread.name for thread in threading.enumerate() if thread.name.startswith("torchbus")
    )
    state |= {name: os.environ.get(name) for name in VARIABLES}
    state["working directory"] = os.getcwd()
    state["active session"] = active.running()
    return state


def _optimizer_classes() -> list[type]:
    """Return the used optimizer classes of torch, which replaces a class's step at first use."""
    found = [
        thing
        for thing in vars(torch.optim).values()
        if isinstance(thing, type) and issubclass(thing, torch.optim.Optimizer)
    ]
    return [cls for cls in found if is_hooked(vars(cls).get("step"))]


def assert_torch_unchanged(before: Mapping[str, object]) -> None:
    """Raise AssertionError with what differs from an earlier ``torch_state()``."""
    now = torch_state()
    different = [
        f"{name}: {before[name]!r} is now {now.get(name)!r}"
        for name in before
        if before[name] != now.get(name)
    ]
    assert not different, "the session left something changed:\n" + "\n".join(different)
