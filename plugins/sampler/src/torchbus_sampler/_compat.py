"""Private names of torch and torchmetrics that the sampler uses; nothing else here uses one.

All were seen in 2.6 to 2.13.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any

from torch.utils.data import _utils, dataloader
from torchbus.compat.required import require

UPDATE_COUNT = "_update_count"
"""The counter that a metric's ``update()`` increases. Without it: no metric counts as updated."""

index_sampler: Callable[[Any], Any] = attrgetter("_index_sampler")
"""The sampler that yields the indices of a batch, or of a sample. Without it: AttributeError at the
first pass.
"""

auto_collation: Callable[[object], bool] = attrgetter("_auto_collation")
"""Whether a loader makes batches. Without it: AttributeError at the first pass."""

pin_memory: Callable[..., object] = _utils.pin_memory.pin_memory
"""Without it: AttributeError when the plugin is imported."""


def on_the_way(iterator: object) -> int:
    """Return the number of batches that workers are loading, or 0 without workers.

    Without ``_send_idx`` or ``_rcvd_idx``: see ``check``.
    """
    return getattr(iterator, "_send_idx", 0) - getattr(iterator, "_rcvd_idx", 0)


@cache
def check() -> None:
    """Raise UsageError if torch lacks a name without which prefetched batches go unnoticed."""
    for name in ("_send_idx", "_rcvd_idx"):
        need = "selects the batches that the workers of a resumed loader load"
        require(dataloader._MultiProcessingDataLoaderIter, name, need)
