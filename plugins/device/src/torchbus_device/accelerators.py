"""Calls torch's functions for any accelerator, by the name of its device type.

They are functions of ``torch.accelerator``, or of the device's module (``torch.cuda``,
``torch.xpu``, ``torch.npu``). Private names were seen in 2.6 to 2.13.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torchbus.compat.required import private

VISIBLE = {
    "cuda": "CUDA_VISIBLE_DEVICES",
    "xpu": "ZE_AFFINITY_MASK",
    "npu": "ASCEND_RT_VISIBLE_DEVICES",
}
"""The environment variables that limit which devices a process sees. ROCm's torch reads CUDA's."""
NAMES = {"gpu": "GPU", "cuda": "GPU", "xpu": "GPU"}
ONE_DEVICE = ("mps",)
"""Types with one device per machine, and without a backend of torch.distributed."""
OF_TORCH_ALONE = ("tpu",)
"""Types with functions that only torch may call; ``torch.accelerator`` has the same functions."""

swap_contents: Callable[[Tensor, Tensor], None] = private(
    torch._C, "_swap_tensor_impl", "moves parameters to a device that another package adds"
)
"""Exchanges the contents of two tensors, which stay the same objects. Without it: UsageError at
such a move.
"""


class Event(Protocol):
    """A mark in a stream, with the methods of ``torch.Event``."""

    def record(self, stream: object = None) -> None: ...
    def wait(self, stream: object = None) -> None: ...
    def query(self) -> bool: ...
    def synchronize(self) -> None: ...
    def elapsed_time(self, other: object) -> float: ...


@dataclass(frozen=True)
class ThroughTorch:
    """A device module whose functions only torch may call, by ``torch.accelerator``."""

    inner: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def device_count(self) -> int:
        return int(torch.accelerator.device_count())

    def set_device(self, device: torch.device) -> None:
        torch.accelerator.set_device_index(device)

    def current_device(self) -> int:
        return int(torch.accelerator.current_device_index())

    def current_stream(self, device: torch.device) -> Any:
        return torch.accelerator.current_stream(device)

    def get_rng_state(self) -> Tensor:
        return cast(Tensor, self.inner.default_generators[self.current_device()].get_state())

    def set_rng_state(self, state: Tensor) -> None:
        self.inner.default_generators[self.current_device()].set_state(state)


def module(kind: str) -> Any:
    """Return the module of a device type, such as ``torch.cuda``; None if torch has none."""
    found = getattr(torch, kind, None)
    return ThroughTorch(found) if found is not None and kind in OF_TORCH_ALONE else found


def built_in() -> str | None:
    """Return the type that this torch was built for, or that a backend has registered."""
    try:
        found = torch.accelerator.current_accelerator()
    except RuntimeError:  # torch 2.6 raises if there is none
        return None
    return None if found is None else str(found.type)


def current() -> str | None:
    """Return the type of this machine's accelerator; None if it has only CPUs.

    This reads only device counts, which leaves CUDA uninitialised.
    """
    kinds = dict.fromkeys(kind for kind in (built_in(), "cuda") if kind is not None)
    return next((kind for kind in kinds if count(kind)), None)


def known() -> list[str]:
    """Return the types for which torch has a module, and which ``accelerator=`` accepts."""
    kinds = dict.fromkeys(("cuda", "xpu", "mps", "mtia", built_in() or "cuda"))
    return [kind for kind in kinds if module(kind) is not None]


def count(kind: str) -> int:
    """Return how many devices of a type this process sees."""
    ask: Callable[[], int] | None = getattr(module(kind), "device_count", None)
    return 0 if ask is None else int(ask())


def is_initialized(kind: str) -> bool:
    """Whether this process already uses devices of a type; such a process can't be forked."""
    ask = getattr(module(kind), "is_initialized", None)
    return count(kind) > 0 if ask is None else bool(ask())


def is_in_bad_fork(kind: str) -> Callable[[], bool] | None:
    """Return a function that says whether a forked process can't use its devices, or None.

    Without ``_is_in_bad_fork``: a rank that was forked too late fails at its first tensor.
    """
    if kind == "cuda" and not torch.backends.cuda.is_built():
        return None
    return getattr(module(kind), "_is_in_bad_fork", None)


def visible_variable(kind: str) -> str | None:
    """Return the environment variable that limits which devices a process sees, or None."""
    return getattr(module(kind), "VISIBLE_DEVICES", None) or VISIBLE.get(kind)


def name_of(kind: str) -> str:
    """Return the user's word for a device of this type."""
    return NAMES.get(kind, f"{kind} device")


def set_device(device: torch.device) -> None:
    """Make a device the current one of this thread."""
    change = getattr(module(device.type), "set_device", None)
    if change is not None:
        change(device)


def current_device(kind: str) -> torch.device:
    """Return the current device of this thread."""
    return torch.device(kind, module(kind).current_device())


def backend_for(kind: str) -> str | None:
    """Return the collective backend of a device type; None if no backend serves it."""
    found: str | None = dist.Backend.default_device_backend_map.get(kind)
    return found


def backends_by_kind(backend: str) -> dict[str, str]:
    """Parse a name such as "cpu:gloo,cuda:nccl" into backends by type; {} for a plain name."""
    return dict(part.split(":", 1) for part in backend.split(",") if ":" in part)


def serves(backend: str, kind: str) -> bool:
    """Whether a backend accepts tensors of a device type, of any shape; True for unknown ones."""
    parts = backends_by_kind(backend)
    if parts:
        return kind in parts
    kinds: list[str] | None = dist.Backend.backend_capability.get(backend)
    return kinds is None or kind in kinds


# Streams ------------------------------------------------------------------------------------------


def event(device: torch.device, timed: bool = False) -> Event:
    """Return a new event. If ``timed``, the time between two events can be measured."""
    if device.type != "cuda":
        return cast(Event, torch.Event(device.type, enable_timing=timed))
    return cast(Event, module(device.type).Event(enable_timing=timed))


def recorded(device: torch.device) -> Event:
    """Return a new event, recorded in the device's current stream."""
    made = event(device)
    made.record()
    return made


def sent(values: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device, of the same shape and dtype. The host does not wait."""
    if device.type == "cpu" or values.device.type != "cpu":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def has_streams(device: torch.device) -> bool:
    """Whether a device type has streams, so that work can run concurrently."""
    return hasattr(module(device.type), "Stream")


def new_stream(device: torch.device) -> Any:
    return module(device.type).Stream(device=device)


def current_stream(device: torch.device) -> Any:
    return module(device.type).current_stream(device)


def on_stream(stream: Any) -> AbstractContextManager[Any]:
    """Return a context in which operations of the stream's device are queued on the stream."""
    using: AbstractContextManager[object] = module(stream.device.type).stream(stream)
    return using


def is_capturing(device: torch.device) -> bool:
    """Whether the current stream is being captured into a graph, and so can't be queried."""
    ask = getattr(module(device.type), "is_current_stream_capturing", None)
    return ask is not None and bool(ask())


# Memory and random numbers ------------------------------------------------------------------------


def memory_info(kind: str, index: int) -> tuple[int, int]:
    """Return the free and total bytes of a device. This initialises the device."""
    free, total = module(kind).mem_get_info(index)
    return int(free), int(total)


def memory_stats(device: torch.device) -> dict[str, Any]:
    """Return the statistics of torch's allocator; {} before first use, or if the type has none."""
    ask = getattr(module(device.type), "memory_stats", None)
    return {} if ask is None else dict(ask(device))


def random_state(kind: str) -> Tensor | None:
    """Return the state of the current device's generator (dtype uint8); None if there is none."""
    ask = getattr(module(kind), "get_rng_state", None)
    return None if ask is None or not is_initialized(kind) else cast(Tensor, ask())


def set_random_state(kind: str, state: Tensor) -> None:
    module(kind).set_rng_state(state)
