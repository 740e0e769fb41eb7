"""Torch's own figures of the device memory that it manages."""

from __future__ import annotations

import torch

from torchbus_device import accelerators

MIB = 2**20


class Allocator:
    """Memory of this process on one device; nothing before the device is in use."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def read(self) -> dict[str, float]:
        found = accelerators.memory_stats(self._device)
        if not found:
            return {}
        return {
            "torch_allocated_mib": found["allocated_bytes.all.current"] / MIB,
            "torch_allocated_peak_mib": found["allocated_bytes.all.peak"] / MIB,
            "torch_reserved_mib": found["reserved_bytes.all.current"] / MIB,
            "torch_alloc_retries": float(found["num_alloc_retries"]),
        }
