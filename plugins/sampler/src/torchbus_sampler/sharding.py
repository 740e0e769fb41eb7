"""``s.shard``: batches that the script makes itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torchbus.plugin import Context, Origin, Share, Taken, UsageError, leaves, map_tensors

from torchbus_sampler.orders.portions import even

Take = Callable[[Taken], None]


def shard(session: Context, value: Any, repeat: bool) -> Any:
    """This rank's part of a batch or of an iterable."""
    take = session.batches.took
    if is_batch(value):
        return shard_batch(value, *session.world.data, take, repeat)
    if not isinstance(value, Iterable):
        raise UsageError(f"s.shard({type(value).__name__}): pass tensors, a range, or another iterable")
    return ShardedItems(value, *session.world.data, take, repeat, lambda: session.job.backwards if session.job else 0)


def shard_batch(batch: Any, rank: int, num_ranks: int, take: Take, repeat: bool = False) -> Any:
    """This rank's rows of every tensor in ``batch``.

    A rank for which there are no rows gets none under ``no_grad``; in training, and with ``repeat``, it gets rank 0's, with weight 0,
    since every rank has to take part in backward.
    """
    lengths = {_rows(tensor) for tensor in leaves(batch)}
    if len(lengths) != 1:
        raise UsageError(f"s.shard: the tensors have {sorted(lengths)} rows in dim 0; they must have the same number")
    num_rows, trains = lengths.pop(), torch.is_grad_enabled()
    start, size = even(rank, num_rows, num_ranks, 2 if trains else 1)
    weight = size * num_ranks / num_rows if num_rows else 1.0
    rows = slice(start, start + size) if size or not (trains or repeat) else slice(0, even(0, num_rows, num_ranks, 2 if trains else 1).length)
    mine = map_tensors(batch, lambda tensor: tensor[rows])
    take(Taken(Origin(), 1, Share(weight, num_rows, range(start, start + size), num_rows), mine))
    return mine


def _rows(tensor: Tensor) -> int:
    if not tensor.dim():
        raise UsageError("s.shard: a tensor of it has no dimension, and so no rows to divide")
    return len(tensor)


class ShardedItems:
    """Every ``num_ranks``-th item of an iterable, lazily; none on two ranks, unless ``repeat``.

    ``backwards`` counts the synchronised ones: a loop that makes some between items trains, and needs as many items on every rank.
    """

    def __init__(self, items: Iterable[Any], rank: int, num_ranks: int, take: Take, repeat: bool, backwards: Callable[[], int]) -> None:
        self._items = items
        self._rank = rank
        self._num_ranks = num_ranks
        self._take = take
        self._repeat = repeat
        self._backwards = backwards

    def __iter__(self) -> Iterator[Any]:
        source, step, last, begun, origin = iter(self._items), 0, None, self._backwards(), Origin("s.shard(...)")
        while items := list(islice(source, self._num_ranks)):
            step += 1
            has_one = self._rank < len(items)
            if len(items) < self._num_ranks and not self._repeat and self._backwards() != begun:
                raise self._ragged(len(items))
            if not has_one and not self._repeat:
                return
            last = items[self._rank] if has_one else (items[0] if last is None else last)
            share = Share(self._num_ranks / len(items) if has_one else 0.0, step, (step,), len(items))
            self._take(Taken(origin, step, share, last))
            yield last
        self._take(Taken(Origin(), 1, Share(), None))  # what follows is no item

    def _ragged(self, left: int) -> UsageError:
        return UsageError(
            f"s.shard: the last {left} item(s) are not enough for {self._num_ranks} ranks, which all have to call backward. "
            "s.shard(items, repeat=True) lets the others repeat one with weight 0"
        )

    def __len__(self) -> int:
        whole, rest = divmod(len(self._items), self._num_ranks)  # type: ignore[arg-type]
        return whole + bool(rest if self._repeat else self._rank < rest)


def is_batch(value: Any) -> bool:
    """Whether it is a tensor, or a nesting of nothing but tensors. Raises UsageError for a mapping or a tuple that holds other things too."""
    if not isinstance(value, Mapping | tuple):
        return _all_tensors(value)
    found = leaves(value)
    others = [type(leaf).__name__ for leaf in found if not isinstance(leaf, Tensor)]
    if others and (len(others) < len(found) or isinstance(value, Mapping)):
        raise UsageError(f"s.shard: a {type(value).__name__} with a {others[0]} in it: a batch is made of tensors, and of nothing else")
    return bool(found) and not others


def _all_tensors(value: Any) -> bool:
    if isinstance(value, Mapping):
        return bool(value) and all(map(_all_tensors, value.values()))
    return isinstance(value, Tensor) or (isinstance(value, tuple | list) and bool(value) and all(map(_all_tensors, value)))
