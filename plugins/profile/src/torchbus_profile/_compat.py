"""Private names of torch that this package uses. They were seen in 2.6 to 2.13."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.autograd import _profiler_enabled

ENTRIES = 100_000


def is_recording() -> bool:
    """Whether a profiler already records in this thread. Torch allows only one at a time.

    Without ``_profiler_enabled``: ImportError when the plugin is imported.
    """
    return bool(_profiler_enabled())


def can_snapshot(device: torch.device) -> bool:
    """Whether torch can make memory snapshots. Without the name: False, and an error says so."""
    return device.type == "cuda" and hasattr(torch.cuda.memory, "_record_memory_history")


def remember_allocations() -> None:
    """Start to record allocations, with their stacks. Without the name it is not called."""
    torch.cuda.memory._record_memory_history(max_entries=ENTRIES)


def forget_allocations() -> None:
    """Stop recording allocations. Without the name it is not called."""
    torch.cuda.memory._record_memory_history(enabled=None)


def write_snapshot(path: Path) -> None:
    """Write a snapshot of the recorded allocations. Without the name it is not called."""
    torch.cuda.memory._dump_snapshot(str(path))
