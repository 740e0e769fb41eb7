"""``DataLoader.__iter__`` and ``__len__``: the order of the data, and each batch on its way to the loop."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Protocol, runtime_checkable

from torch.utils.data import BatchSampler, DataLoader, SequentialSampler
from torch.utils.data.dataloader import _DatasetKind, _SingleProcessDataLoaderIter

from torchbus._batches.taken import Origin
from torchbus._bus.bus import Bus
from torchbus._seams import subclasses
from torchbus._seams.ears import Ears

PLACE = "DataLoader.__iter__, __len__"
EVENTS = (
    "skip_pass", "loader_start", "loader_opened", "loader_length", "batch_wanted", "batch_ready", "batches_skipped", "loader_end", "loader_bypassed",
)  # fmt: skip


class Pass:
    """One pass over a loader: which of the loader's attributes are replaced while its iterator is made."""

    def __init__(self, **replacements: Any) -> None:
        self.replacements = replacements


@runtime_checkable
class Skipping(Protocol):
    """An iterator of an order that gets past any number of batches at once."""

    def skip(self, count: int) -> None:
        """Raises StopIteration where there are not as many."""


class LoaderIterator:
    """What the loop iterates: torch's own iterator, with every batch announced. Other attributes are the iterator's, and so are its class
    and its way of being copied (torch's refuses to be)."""

    def __init__(self, loader: DataLoader[Any], inner: Iterator[Any], bus: Bus, order: Pass | None) -> None:
        self.loader = loader
        self._inner = inner
        self._wanted = bus.listeners("batch_wanted")
        self._ready = bus.listeners("batch_ready")
        self._bus = bus
        self.order = order
        self._looks_ahead = False
        self._ahead: list[Any] = []
        self.taken = getattr(inner, "_num_yielded", 0)  # torchdata's may go on from a state
        self.origin = Origin(f"the loader over {type(loader.dataset).__name__}")
        self.origin.loader, self.origin.iterator = weakref.ref(loader), weakref.ref(self)

    def __iter__(self) -> LoaderIterator:
        return self

    def __next__(self) -> Any:
        for listener in self._wanted:
            listener(self.loader, self)
        try:
            batch = self._read()
        except StopIteration:
            self.origin.ended, self.origin.length = True, self.taken
            self._bus.hook.loader_end(loader=self.loader, order=self.order)
            raise
        self.taken += 1
        for listener in self._ready:
            instead = listener(self.loader, batch, self.order, self)
            if instead is not None:
                batch = instead
        return batch

    def skip(self, count: int) -> None:
        """Go past so many batches. Those of a map-style dataset that this process reads itself are not loaded; others are,
        since workers and streams have a state of their own. Raises StopIteration where there are not as many."""
        indices = self._inner._sampler_iter if self._reads_by_index else None  # type: ignore[attr-defined]
        if isinstance(indices, Skipping):
            indices.skip(count)
        elif indices is not None and not self.taken and _is_sequential(self._inner._index_sampler, count):  # type: ignore[attr-defined]
            self._inner._sampler_iter = _batches_behind(self._inner._index_sampler, count)  # type: ignore[attr-defined]
        else:
            for _ in range(count):
                self._read() if indices is None else next(indices)
        self.taken += count
        self._bus.hook.batches_skipped(loader=self.loader, order=self.order, count=count)

    def find_last(self) -> None:
        """Let ``origin.length`` be known: by the loader's length; where it has none, by reading each batch before the one
        before it is handed over."""
        try:
            self.origin.length = len(self.loader)
        except TypeError:
            self._looks_ahead = True
            if self.taken and not self._ahead:
                self._look_ahead(self.taken)

    @property
    def ended(self) -> bool:
        """Whether the loop has exhausted it."""
        return self.origin.ended

    @property
    def _reads_by_index(self) -> bool:
        return type(self._inner) is _SingleProcessDataLoaderIter and self._inner._dataset_kind == _DatasetKind.Map

    def _read(self) -> Any:
        return self._read_ahead() if self._looks_ahead else next(self._inner)

    def _read_ahead(self) -> Any:
        batch = self._ahead.pop() if self._ahead else next(self._inner)
        self._look_ahead(self.taken + 1)
        return batch

    def _look_ahead(self, taken: int) -> None:
        self._ahead.extend(islice(self._inner, 1))
        if not self._ahead:
            self.origin.length = taken

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # type: ignore[override]
        return type(self._inner)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._inner.__reduce_ex__(protocol)


def _is_sequential(batches: Any, count: int) -> bool:
    """Whether it cuts a data set into batches in its own order, by torch's own classes, and into as many as ``count``."""
    return type(batches) is BatchSampler and type(batches.sampler) is SequentialSampler and count <= len(batches)


def _batches_behind(batches: BatchSampler, count: int) -> Iterator[list[int]]:
    rest = range(len(batches.sampler))[count * batches.batch_size :]  # type: ignore[arg-type]
    return iter(BatchSampler(rest, batches.batch_size, batches.drop_last))


@contextmanager
def replaced(loader: DataLoader[Any], attributes: dict[str, Any]) -> Iterator[None]:
    """Other attributes for the loader inside the block; the loader itself stays as it was."""
    own = {name: loader.__dict__[name] for name in attributes}
    loader.__dict__.update(attributes)
    try:
        yield
    finally:
        loader.__dict__.update(own)


def install(ears: Ears) -> Callable[[], None]:
    heard = subclasses.Heard()

    def make_iter(original: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        def __iter__(self: DataLoader[Any]) -> Iterator[Any]:
            heard.note(self)
            if ears.hook.skip_pass(loader=self):
                return iter(())
            subclasses.begin_anew(self)
            order: Pass | None = ears.hook.loader_start(loader=self)
            with replaced(self, {} if order is None else order.replacements):
                kept = getattr(self, "_iterator", None)
                if kept is not None:  # persistent workers: the kept iterator remembers the sampler of its first pass
                    kept._index_sampler = self._index_sampler
                inner = original(self)
            iterator = LoaderIterator(self, inner, ears.bus, order)
            ears.hook.loader_opened(loader=self, iterator=iterator)
            return iterator  # type: ignore[return-value]

        return __iter__

    def make_len(original: Callable[..., int]) -> Callable[..., int]:
        def __len__(self: DataLoader[Any]) -> int:
            length: int | None = ears.hook.loader_length(loader=self)
            return original(self) if length is None else length

        return __len__

    undo_subclasses = subclasses.install(ears, make_iter, heard)
    undo_iter = ears.replace(DataLoader, "__iter__", make_iter)
    undo_len = ears.replace(DataLoader, "__len__", make_len)

    def undo() -> None:
        undo_len()
        undo_iter()
        undo_subclasses()

    return undo
