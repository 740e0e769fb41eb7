"""Whether torch, and this process, are as they were."""

from __future__ import annotations

import os
import signal
import sys
import threading
import types
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.modules import module
from torch.nn.utils import clip_grad
from torch.optim import Optimizer, lr_scheduler, optimizer
from torch.utils.data import DataLoader

from torchbus._session import active

OWNERS: dict[str, Any] = {
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
    types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType,
    property, staticmethod, classmethod,
)  # fmt: skip
REPLACED_BY_TORCH = {"manual_seed"}  # when torch.compile's machinery is loaded
STREAMS = ("stdin", "stdout", "stderr", "excepthook")
VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "OMP_NUM_THREADS", "PYTHONPATH",
    "RANK", "TORCHBUS_LAUNCH", "WORLD_SIZE",
)  # fmt: skip
HOOK_TABLES: dict[str, tuple[Any, str]] = {
    "module forward hooks": (module, "_global_forward_hooks"),
    "module forward pre-hooks": (module, "_global_forward_pre_hooks"),
    "module backward hooks": (module, "_global_backward_hooks"),
    "module backward pre-hooks": (module, "_global_backward_pre_hooks"),
    "module registration hooks": (module, "_global_module_registration_hooks"),
    "parameter registration hooks": (module, "_global_parameter_registration_hooks"),
    "buffer registration hooks": (module, "_global_buffer_registration_hooks"),
    "optimizer step pre-hooks": (optimizer, "_global_optimizer_pre_hooks"),
    "optimizer step post-hooks": (optimizer, "_global_optimizer_post_hooks"),
}


def torch_state() -> dict[str, Any]:
    """What a session may change in torch and in this process, by name: every function of torch's that a loop meets, hooks,
    signals, threads, streams, launchers' variables. For ``assert_torch_unchanged``."""
    state: dict[str, Any] = {
        f"{name}.{attribute}": value
        for name, owner in OWNERS.items()
        for attribute, value in vars(owner).items()
        if issubclass(type(value), ROUTINES) and attribute not in REPLACED_BY_TORCH
    }
    state |= {f"sys.{name}": getattr(sys, name) for name in STREAMS}
    state |= {name: dict(getattr(owner, attribute, {})) for name, (owner, attribute) in HOOK_TABLES.items()}
    state |= {signal.Signals(number).name: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    if threading.current_thread() is threading.main_thread():
        state["signal wakeup descriptor"] = fd = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(fd)
    for function in (clip_grad.clip_grad_norm_, clip_grad.clip_grad_value_):
        state[f"inside {function.__name__}"] = [cell.cell_contents for cell in function.__closure__ or ()]
    for cls in _optimizer_classes():
        state[f"{cls.__module__}.{cls.__qualname__}.step"] = vars(cls).get("step")
        update = cls.__module__.rpartition(".")[2]
        state[f"{cls.__module__}.{update}"] = vars(sys.modules[cls.__module__]).get(update)
    state["threads of torch"] = torch.get_num_threads()
    state["threads of torchbus"] = sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("torchbus"))
    state["process group"] = dist.is_available() and dist.is_initialized()
    state["default device, dtype"] = (torch.get_default_device(), torch.get_default_dtype())
    state["autograd, inference"] = (torch.is_grad_enabled(), torch.is_inference_mode_enabled())
    state |= {name: os.environ.get(name) for name in VARIABLES}
    state["working directory"] = os.getcwd()
    state["active session"] = active.current()
    return state


def _optimizer_classes() -> list[type]:
    """Those of torch that were used: torch itself replaces the step of others when they are."""
    found = [thing for thing in vars(torch.optim).values() if isinstance(thing, type) and issubclass(thing, torch.optim.Optimizer)]
    return [cls for cls in found if getattr(vars(cls).get("step"), "hooked", False)]


def assert_torch_unchanged(before: Mapping[str, Any]) -> None:
    """Raise AssertionError, naming what differs from an earlier ``torch_state()``."""
    now = torch_state()
    different = [f"{name}: {before[name]!r} is now {now.get(name)!r}" for name in before if before[name] != now.get(name)]
    assert not different, "the session left something changed:\n" + "\n".join(different)
