"""Records the samples of each batch at torch's iterators, below anything that divides the data."""

from __future__ import annotations

import weakref
import zlib
from collections import deque
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset
from torchbus.tree import leaves

from torchbus_verify._compat import DATA_ITERATOR, NEXT_INDEX, RESET
from torchbus_verify.record.writing import RecordWriter


class BatchRecorder:
    """Writes an event for each batch that the loop gets from a DataLoader."""

    def __init__(self, writer: RecordWriter) -> None:
        self._writer = writer
        self._loaders: list[Any] = []
        self._passes: list[int] = []
        self._open: weakref.WeakKeyDictionary[Any, _Pass] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        self._hear_passes()
        self._hear_batches()

    def _hear_passes(self) -> None:
        begin, reset = DATA_ITERATOR.__init__, getattr(DATA_ITERATOR, RESET)

        def __init__(iterator: Any, loader: Any) -> None:
            self._begin(iterator, loader)
            begin(iterator, loader)

        def again(iterator: Any, loader: Any, first_iter: bool = False) -> None:
            if not first_iter:
                self._begin(iterator, loader)
            reset(iterator, loader, first_iter)

        DATA_ITERATOR.__init__ = __init__
        setattr(DATA_ITERATOR, RESET, again)

    def _hear_batches(self) -> None:
        draw, take = getattr(DATA_ITERATOR, NEXT_INDEX), DATA_ITERATOR.__next__

        def next_index(iterator: Any) -> Any:
            index = draw(iterator)
            if iterator in self._open:
                self._open[iterator].drawn.append(index)
            return index

        def __next__(iterator: Any) -> Any:
            batch = take(iterator)
            if iterator in self._open:  # otherwise it was made before ``install``
                self._take(self._open[iterator], batch)
            return batch

        DATA_ITERATOR.__next__ = __next__
        setattr(DATA_ITERATOR, NEXT_INDEX, next_index)

    def _begin(self, iterator: Any, loader: Any) -> None:
        number = next((i for i, one in enumerate(self._loaders) if one is loader), None)
        if number is None:
            number = len(self._loaders)
            self._loaders.append(loader)
            self._passes.append(0)
        self._open[iterator] = _Pass(number, self._passes[number], loader)
        self._passes[number] += 1

    def _take(self, found: _Pass, batch: Any) -> None:
        index = found.drawn.popleft() if found.drawn else None
        dataset = found.loader.dataset
        indices = index if isinstance(index, list | tuple) else [index]
        streams = isinstance(dataset, IterableDataset)
        samples = _rows(batch) if streams else [_name(one) for one in indices]
        size = f"[{len(dataset)}]" if hasattr(dataset, "__len__") else ""
        self._writer.write(
            "batch",
            loader=found.loader_number,
            of_pass=found.number,
            batch=found.num_batches,
            dataset=f"{type(dataset).__name__}{size}",
            samples=samples,
            trains=torch.is_grad_enabled(),
        )
        found.num_batches += 1


class _Pass:
    def __init__(self, loader_number: int, number: int, loader: Any) -> None:
        self.loader_number, self.number, self.loader = loader_number, number, loader
        self.drawn: deque[Any] = deque()
        self.num_batches = 0


def _name(index: Any) -> int | str:
    return int(index) if hasattr(index, "__index__") else str(index)


def _rows(batch: Any) -> list[int | str]:
    """Return identifiers of samples without an index, from the content of their first tensor."""
    batch = getattr(batch, "batch", batch)  # unwrap the sampler's batch
    first = next((one for one in leaves(batch) if isinstance(one, Tensor)), None)
    if first is None:
        return [repr(one)[:80] for one in (batch if isinstance(batch, list | tuple) else [batch])]
    rows = first.detach().cpu() if first.dim() else first.detach().cpu().reshape(1)
    return [f"{zlib.crc32(repr(row.tolist()).encode()):08x}" for row in rows]
