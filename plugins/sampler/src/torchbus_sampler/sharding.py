"""``s.shard``: batches that the script makes itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torchbus.errors import UsageError
from torchbus.share import Share
from torchbus.taken import Origin, Taken

from torchbus_sampler.shares import share_sizes

Take = Callable[[Taken], None]


def shard_batch(batch: Any, rank: int, num_ranks: int, take: Take) -> Any:
    """This rank's rows of every tensor in ``batch``; a rank without rows repeats rank 0's, with weight 0."""
    lengths = {len(tensor) for tensor in tensors_in(batch)}
    if len(lengths) != 1:
        raise UsageError(f"s.shard: the tensors have {sorted(lengths)} rows in dim 0; they must have the same number")
    num_rows = lengths.pop()
    sizes = share_sizes(num_rows, num_ranks)
    start, size = sum(sizes[:rank]), sizes[rank]
    share = Share(size * num_ranks / num_rows, num_rows, range(start, start + size), num_rows)
    rows = slice(start, start + size) if size else slice(0, sizes[0])
    mine = map_tensors(batch, lambda tensor: tensor[rows])
    take(Taken(Origin(), 1, share, mine))
    return mine


class ShardedItems:
    """Every ``num_ranks``-th item of an iterable, lazily."""

    def __init__(self, items: Iterable[Any], rank: int, num_ranks: int, take: Take) -> None:
        self._items = items
        self._rank = rank
        self._num_ranks = num_ranks
        self._take = take

    def __iter__(self) -> Iterator[Any]:
        source, step, last, origin = iter(self._items), 0, None, Origin("s.shard(...)")
        while items := list(islice(source, self._num_ranks)):
            step += 1
            has_one = self._rank < len(items)
            if not has_one and not torch.is_grad_enabled():
                return
            last = items[self._rank] if has_one else (items[0] if last is None else last)
            share = Share(self._num_ranks / len(items) if has_one else 0.0, step, (step,), len(items))
            self._take(Taken(origin, step, share, last))
            yield last

    def __len__(self) -> int:
        whole, rest = divmod(len(self._items), self._num_ranks)  # type: ignore[arg-type]
        return whole + bool(rest if torch.is_grad_enabled() else self._rank < rest)


def is_batch(value: Any) -> bool:
    """A tensor, or a tuple, list or mapping of nothing but tensors and such."""
    if isinstance(value, Mapping):
        return bool(value) and all(is_batch(item) for item in value.values())
    return isinstance(value, Tensor) or (isinstance(value, tuple | list) and bool(value) and all(map(is_batch, value)))


def tensors_in(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [tensor for item in (value.values() if isinstance(value, Mapping) else value) for tensor in tensors_in(item)]


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: map_tensors(item, change) for key, item in value.items()}
    return type(value)(map_tensors(item, change) for item in value)
