"""``torch.sim``: the module of the simulated device, as ``torch.cuda`` is the one of CUDA."""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from torchbus_simulator.build import extension

VISIBLE_DEVICES = "SIM_VISIBLE_DEVICES"
"""The variable that limits the devices that a process sees, like CUDA_VISIBLE_DEVICES."""
Where = torch.device | int | str | None


def index_of(device: Where = None) -> int:
    """Return the index of a device, by default of the current one."""
    if isinstance(device, int):
        return device
    number = None if device is None else torch.device(device).index
    return int(extension().get_device()) if number is None else number


def module() -> types.ModuleType:
    """Return a module with the functions that torch and training loops call in ``torch.sim``."""
    made = types.ModuleType("torch.sim")
    made.__dict__.update(_state(), **_streams(), **_memory(), **_random())
    return made


def _state() -> dict[str, Any]:
    mine = extension()
    return {
        "VISIBLE_DEVICES": VISIBLE_DEVICES,
        "is_available": lambda: mine.device_count() > 0,
        "device_count": mine.device_count,
        "current_device": mine.get_device,
        "set_device": lambda device: mine.set_device(index_of(device)),
        "device": _device,
        "is_initialized": mine.is_initialised,
        "init": mine.initialise,
        "get_device_name": lambda device=None: f"simulated accelerator {index_of(device)}",
        "get_amp_supported_dtype": lambda: [torch.bfloat16, torch.float16, torch.float32],
        "is_bf16_supported": lambda including_emulation=True: True,
    }


@contextmanager
def _device(device: Where) -> Iterator[None]:
    before = extension().get_device()
    extension().set_device(index_of(device))
    try:
        yield
    finally:
        extension().set_device(before)


def _streams() -> dict[str, Any]:
    return {
        "Stream": _stream,
        "Event": lambda *_, **options: torch.Event("sim", **options),
        "current_stream": lambda device=None: torch.accelerator.current_stream(index_of(device)),
        "default_stream": lambda device=None: torch.Stream(
            device_index=index_of(device), stream_id=0, device_type=_type_number()
        ),
        "set_stream": torch.accelerator.set_stream,
        "stream": _use_stream,
        "synchronize": lambda device=None: torch.accelerator.synchronize(index_of(device)),
    }


def _type_number() -> int:
    return torch.Stream("sim").device_type


def _stream(device: Where = None, priority: int = 0) -> torch.Stream:
    return torch.Stream(torch.device("sim", index_of(device)), priority=priority)


@contextmanager
def _use_stream(stream: torch.Stream | None) -> Iterator[None]:
    if stream is None:
        yield
        return
    before = torch.accelerator.current_stream(stream.device)
    device = extension().get_device()
    torch.accelerator.set_stream(stream)
    try:
        yield
    finally:
        torch.accelerator.set_stream(before)
        extension().set_device(device)


def _memory() -> dict[str, Any]:
    memory = torch.accelerator.memory
    return {
        "memory_stats": lambda device=None: memory.memory_stats(index_of(device)),
        "memory_allocated": lambda device=None: memory.memory_allocated(index_of(device)),
        "memory_reserved": lambda device=None: memory.memory_reserved(index_of(device)),
        "max_memory_allocated": lambda device=None: memory.max_memory_allocated(index_of(device)),
        "reset_peak_memory_stats": lambda device=None: memory.reset_peak_memory_stats(
            index_of(device)
        ),
        "mem_get_info": lambda device=None: memory.get_memory_info(index_of(device)),
        "empty_cache": memory.empty_cache,
        "OutOfMemoryError": torch.OutOfMemoryError,
    }


def _random() -> dict[str, Any]:
    def generators() -> Iterator[torch.Generator]:
        return (extension().generator(index) for index in range(extension().device_count()))

    def set_rng_state(state: torch.Tensor, device: Where = None) -> None:
        extension().generator(index_of(device)).set_state(state)

    def manual_seed_all(seed: int) -> None:
        for generator in generators():
            generator.manual_seed(seed)

    return {
        "get_rng_state": lambda device=None: extension().generator(index_of(device)).get_state(),
        "set_rng_state": set_rng_state,
        "get_rng_state_all": lambda: [generator.get_state() for generator in generators()],
        "manual_seed": lambda seed: extension().generator(index_of()).manual_seed(seed),
        "manual_seed_all": manual_seed_all,
        "initial_seed": lambda: extension().generator(index_of()).initial_seed(),
    }
