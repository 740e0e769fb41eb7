"""Batches of torch's own classes in the data set's order, which can be skipped at once."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import cast

from torch.utils.data import BatchSampler, SequentialSampler


def is_sequential(batches: object, count: int) -> bool:
    """Whether torch's own classes cut a data set into batches in its order, at least ``count``."""
    return (
        type(batches) is BatchSampler
        and type(batches.sampler) is SequentialSampler
        and count <= len(batches)
    )


def batches_behind(batches: BatchSampler, count: int) -> Iterator[list[int]]:
    rest = range(len(cast(Sized, batches.sampler)))[count * batches.batch_size :]
    return iter(BatchSampler(rest, batches.batch_size, batches.drop_last))
