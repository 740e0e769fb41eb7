"""Private names of data loaders and their iterators.

All were seen in 2.6 to 2.13.
"""

from __future__ import annotations

from functools import cache
from operator import attrgetter
from typing import Any

from torch.utils.data import DataLoader, dataloader

from torchbus.compat.required import require

SINGLE_PROCESS = dataloader._SingleProcessDataLoaderIter
"""Without it: AttributeError at ``import torchbus``."""

MAP_STYLE = dataloader._DatasetKind.Map
"""Without it: AttributeError at ``import torchbus``."""

OF_WORKERS = dataloader._MultiProcessingDataLoaderIter
"""Without it: AttributeError at ``import torchbus``."""

GET_ITERATOR = "_get_iterator"
"""The method by which an ``__iter__`` like torch's makes the iterator.

Without it: UsageError when the loaders' patch is installed.
"""

index_sampler = attrgetter("_index_sampler")
"""The sampler that yields the indices of a batch, or of a sample. Without it: AttributeError at the
first pass that needs it.
"""

sampler_iter = attrgetter("_sampler_iter")
"""The iterator over that sampler. Without it: AttributeError when batches are skipped."""

dataset_kind = attrgetter("_dataset_kind")
"""Without it: AttributeError when batches are skipped."""


def read_from(iterator: Any, indices: object) -> None:
    """Make an iterator read these indices. Without ``_sampler_iter``: see ``sampler_iter``."""
    iterator._sampler_iter = indices


def retained_iterator(loader: DataLoader[object]) -> object:
    """Return the iterator that a loader retains for persistent workers, or None.

    Without ``_iterator``: UsageError when the loaders' patch is installed.
    """
    return getattr(loader, "_iterator", None)


def give_sampler(iterator: Any, loader: DataLoader[object]) -> None:
    """Give a retained iterator the loader's present sampler; it has that of its first pass.

    Without ``_index_sampler``: see ``index_sampler``.
    """
    iterator._index_sampler = loader._index_sampler


def yielded(iterator: object) -> int:
    """Return how many batches an iterator has yielded; torchdata's may continue from a state.

    Without ``_num_yielded``: UsageError when the loaders' patch is installed.
    """
    return getattr(iterator, "_num_yielded", 0)


def has_early_iterator(loader: object) -> bool:
    """Whether torchdata's StatefulDataLoader has made an iterator for its ``state_dict``.

    Seen in torchdata 0.11. Without ``_initial_iter_for_state_dict``: UsageError at the first pass
    over such a loader.
    """
    name = "_initial_iter_for_state_dict"
    if type(loader).__module__.startswith("torchdata."):
        require(type(loader), name, "detects whether a StatefulDataLoader has begun its pass")
    return getattr(loader, name, False) is True


def workers(iterator: object) -> list[Any]:
    """Return the worker processes of an iterator, or [] if it has none.

    Without ``_workers``: UsageError when the loaders' patch is installed.
    """
    return getattr(iterator, "_workers", [])


def has_ready(iterator: object) -> bool:
    """Whether a worker of torch's own iterator has made the next batch.

    Without ``_send_idx``, ``_task_info`` or ``_data_queue``: AttributeError at the first backward
    on an accelerator.
    """
    if type(iterator) is not OF_WORKERS:
        return False
    due = iterator._rcvd_idx
    has_come = len(iterator._task_info.get(due, ())) == 2 or not iterator._data_queue.empty()
    return bool(due < iterator._send_idx and has_come)


@cache
def check() -> None:
    """Raise UsageError for a missing private name whose absence would otherwise go unnoticed."""
    require(DataLoader, GET_ITERATOR, "distinguishes loaders with torch's iterator")
    require(DataLoader, "_iterator", "divides the data of persistent workers in each pass")
    require(SINGLE_PROCESS, "_num_yielded", "counts the batches of a resumed loader")
    require(OF_WORKERS, "_workers", "names the workers that a rank waits for")
    require(OF_WORKERS, "_rcvd_idx", "detects whether the workers of a rank are stopped")
