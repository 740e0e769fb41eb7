"""``s.shard``: divide batches that the script makes itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from itertools import islice
from typing import Any, cast

import torch
from torch import Tensor
from torchbus.plugin import Context, Origin, Share, UsageError, an
from torchbus.tree import is_dataclass, leaves, map_tensors

from torchbus_sampler.orders.sliced import even
from torchbus_strategy.batches import TrackedBatch

Take = Callable[[TrackedBatch], None]


def shard(session: Context, value: Any, repeat: bool) -> Any:
    """Return this rank's part of a batch or of an iterable."""
    take = session.batches.record
    if is_batch(value):
        return shard_batch(value, *session.world.data, take, repeat)
    if not isinstance(value, Iterable):
        raise UsageError(
            f"s.shard({type(value).__name__}): pass tensors, a range, or another iterable"
        )
    return ShardedItems(
        value,
        *session.world.data,
        take,
        repeat,
        lambda: session.job.backwards if session.job else 0,
    )


def shard_batch(batch: Any, rank: int, num_ranks: int, take: Take, repeat: bool = False) -> Any:
    """Return this rank's rows of every tensor in ``batch``.

    A rank for which there are no rows gets none under ``no_grad``. In training, and with
    ``repeat``, it gets rank 0's rows with weight 0, because every rank must call backward.
    """
    lengths = {_rows(tensor) for tensor in leaves(batch)}
    if len(lengths) != 1:
        raise UsageError(
            f"s.shard: the tensors have {sorted(lengths)} rows in dim 0; they must have the same"
            " number"
        )
    num_rows, trains = lengths.pop(), torch.is_grad_enabled()
    start, size = even(rank, num_rows, num_ranks, 2 if trains else 1)
    weight = size * num_ranks / num_rows if num_rows else 1.0
    rows = (
        slice(start, start + size)
        if size or not (trains or repeat)
        else slice(0, even(0, num_rows, num_ranks, 2 if trains else 1).length)
    )
    mine = map_tensors(batch, lambda tensor: tensor[rows])
    take(
        TrackedBatch(
            Origin(), 1, Share(weight, num_rows, range(start, start + size), num_rows), mine
        )
    )
    return mine


def _rows(tensor: Tensor) -> int:
    if not tensor.dim():
        raise UsageError("s.shard: a tensor has no dimension, and so no rows to divide")
    return len(tensor)


class ShardedItems:
    """Yields every ``num_ranks``-th item of an iterable, lazily. No two ranks get the same one.

    With ``repeat``, a rank without an item at the end repeats one. ``backwards`` returns the number
    of synchronised backwards. A loop that calls any between items trains, and needs the same number
    of items on every rank.
    """

    def __init__(
        self,
        items: Iterable[object],
        rank: int,
        num_ranks: int,
        take: Take,
        repeat: bool,
        backwards: Callable[[], int],
    ) -> None:
        self._items = items
        self._rank = rank
        self._num_ranks = num_ranks
        self._take = take
        self._repeat = repeat
        self._backwards = backwards

    def __iter__(self) -> Iterator[object]:
        source, origin = iter(self._items), Origin("s.shard(...)")
        begun, step, last = self._backwards(), 0, None
        while items := list(islice(source, self._num_ranks)):
            step += 1
            has_one = self._rank < len(items)
            if len(items) < self._num_ranks and not self._repeat and self._backwards() != begun:
                raise self._ragged(len(items))
            if not has_one and not self._repeat:
                return
            last = items[self._rank] if has_one else (items[0] if last is None else last)
            share = Share(
                self._num_ranks / len(items) if has_one else 0.0, step, (step,), len(items)
            )
            self._take(TrackedBatch(origin, step, share, last))
            yield last
        self._take(TrackedBatch(Origin(), 1, Share(), None))  # later backwards don't use an item

    def _ragged(self, left: int) -> UsageError:
        return UsageError(
            f"s.shard: the last {left} item(s) are not enough for {self._num_ranks} ranks, which"
            " all have to call backward. s.shard(items, repeat=True) lets the others repeat one"
            " with weight 0"
        )

    def __len__(self) -> int:
        whole, remaining = divmod(len(cast(Sized, self._items)), self._num_ranks)
        return whole + bool(remaining if self._repeat else self._rank < remaining)


def is_batch(value: object) -> bool:
    """Whether ``value`` is a tensor, or a nesting of only tensors.

    Raises UsageError for a mapping, dataclass or tuple that mixes tensors with other objects.
    """
    if not (isinstance(value, Mapping | tuple) or is_dataclass(value)):
        return _all_tensors(value)
    found = leaves(value)
    others = [type(leaf).__name__ for leaf in found if not isinstance(leaf, Tensor)]
    if others and (len(others) < len(found) or not isinstance(value, tuple)):
        raise UsageError(
            f"s.shard: {an(type(value).__name__)} with {an(others[0])} in it: a batch must hold"
            " only tensors"
        )
    return bool(found) and not others


def _all_tensors(value: object) -> bool:
    if isinstance(value, Mapping):
        return bool(value) and all(map(_all_tensors, value.values()))
    return isinstance(value, Tensor) or (
        isinstance(value, tuple | list) and bool(value) and all(map(_all_tensors, value))
    )
