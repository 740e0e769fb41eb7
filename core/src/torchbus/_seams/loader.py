"""``DataLoader.__iter__`` and ``__len__``: the order of the data, and each batch of the loop."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sized
from contextlib import ExitStack
from functools import partial
from itertools import islice
from typing import Any, cast

from torch.utils.data import DataLoader

from torchbus._batches.anew import DividedAnew
from torchbus._batches.taken import Origin
from torchbus._bus.bus import Bus
from torchbus._compat import loaders
from torchbus._seams import sequential, subclasses
from torchbus._seams.ears import Ears, emits
from torchbus._seams.passes import Pass, Skipping, replaced

Iter = Callable[..., Iterator[object]]


class LoaderIterator:
    """What the loop iterates: torch's own iterator, which announces every batch.

    Its other attributes, its class included, are those of torch's iterator. Like that, it can't be
    copied.
    """

    def __init__(
        self,
        loader: DataLoader[object],
        make: Callable[[], Iterator[object]],
        bus: Bus,
        order: Pass | None,
    ) -> None:
        self.loader = loader
        self._make = make
        self._inner = inner = make()
        self._wanted = bus.listeners("batch_wanted")
        self._ready = bus.listeners("batch_ready")
        self._bus = bus
        self.order = order
        self._looks_ahead = self._finds_last = False
        self._ahead: list[object] = []
        self._failed: Exception | None = None
        # torchdata's iterator may continue from a state
        self.taken = loaders.yielded(inner)
        self.origin = Origin(f"the loader over {type(loader.dataset).__name__}")
        self.origin.loader, self.origin.iterator = weakref.ref(loader), weakref.ref(self)

    def __iter__(self) -> LoaderIterator:
        return self

    def __next__(self) -> object:
        for listener in self._wanted.now:
            listener(self.loader, self)
        try:
            batch = self._read()
        except StopIteration:
            self.origin.ended, self.origin.length = True, self.taken
            self._bus.hook.loader_end(loader=self.loader, order=self.order)
            raise
        self.taken += 1
        for listener in self._ready.now:
            instead = listener(self.loader, batch, self.order, self)
            if instead is not None:
                batch = instead
        if self._finds_last:
            self.find_last()
        return batch

    def skip(self, count: int) -> None:
        """Skip so many batches. Raises StopIteration if there are not as many.

        If this process reads a map-style data set itself, skipped batches are not loaded. Otherwise
        they are: workers and streams have a state of their own.
        """
        indices = loaders.sampler_iter(self._inner) if self._reads_by_index else None
        if isinstance(indices, Skipping):
            indices.skip(count)
        elif (
            indices is not None
            and not self.taken
            and sequential.is_sequential(loaders.index_sampler(self._inner), count)
        ):
            rest = sequential.batches_behind(loaders.index_sampler(self._inner), count)
            loaders.read_from(self._inner, rest)
        else:
            for _ in range(count):
                self._read() if indices is None else next(indices)
        self.taken += count
        self._bus.hook.batches_skipped(loader=self.loader, order=self.order, count=count)

    def restart(self) -> None:
        """Make torch's iterator anew, from where the order is now.

        Batches that were read ahead, by workers or by the session, are dropped.
        """
        self._ahead.clear()
        self._failed, self._inner = None, self._make()

    def read_ahead(self) -> object:
        """Read the next batch if a worker has made it. The loop gets it, or its error, in turn.

        Returns None if nothing was read.
        """
        if self._ahead or self._failed or self.ended or not loaders.has_ready(self._inner):
            return None
        try:
            self._ahead.extend(islice(self._inner, 1))
        except Exception as error:
            self._failed = error
        return self._ahead[-1] if self._ahead else None

    def find_last(self) -> None:
        """Find ``origin.length``.

        If the loader has no length, read each batch before the one before it is handed over. An
        order that is divided anew is asked after each batch: its length changes.
        """
        order = self.divided_anew
        if order is not None:
            self._finds_last = True
            self.origin.length = self.taken if self.taken and not order.has_more() else None
            return
        try:
            self.origin.length = len(self.loader)
        except TypeError:
            self._looks_ahead = True
            if self.taken and not self._ahead:
                self._look_ahead(self.taken)

    @property
    def divided_anew(self) -> DividedAnew | None:
        """The order that this pass draws from, if it is divided anew between two steps."""
        return None if self.order is None else self.order.divided_anew

    def wraps(self, iterator: object) -> bool:
        """Whether it announces the batches of this iterator of torch."""
        return self._inner is iterator

    @property
    def ended(self) -> bool:
        """Whether the loop has exhausted the iterator."""
        return self.origin.ended

    @property
    def _reads_by_index(self) -> bool:
        return (
            type(self._inner) is loaders.SINGLE_PROCESS
            and loaders.dataset_kind(self._inner) == loaders.MAP_STYLE
        )

    def _read(self) -> object:
        if self._failed is not None:
            error, self._failed = self._failed, None
            raise error
        if self._looks_ahead:
            return self._read_ahead()
        return self._ahead.pop() if self._ahead else next(self._inner)

    def _read_ahead(self) -> object:
        batch = self._ahead.pop() if self._ahead else next(self._inner)
        self._look_ahead(self.taken + 1)
        return batch

    def _look_ahead(self, taken: int) -> None:
        self._ahead.extend(islice(self._inner, 1))
        if not self._ahead:
            self.origin.length = taken

    def __len__(self) -> int:
        return len(cast(Sized, self._inner))

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._inner)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._inner.__reduce_ex__(protocol)


@emits(
    "DataLoader.__iter__, __len__",
    "skip_pass",
    "loader_start",
    "loader_opened",
    "loader_length",
    "batch_wanted",
    "batch_ready",
    "batches_skipped",
    "loader_end",
    "loader_bypassed",
)
def data_loaders(ears: Ears) -> Callable[[], None]:
    loaders.check()
    heard = subclasses.Heard()
    make_iter = partial(_heard_iter, ears, heard)
    undo = ExitStack()
    undo.callback(subclasses.replace_own_iter(ears, make_iter, heard))
    undo.callback(ears.replace(DataLoader, "__iter__", make_iter))
    undo.callback(ears.replace(DataLoader, "__len__", partial(_heard_len, ears)))
    return undo.close


def _heard_iter(ears: Ears, heard: subclasses.Heard, original: Iter) -> Iter:
    def __iter__(self: DataLoader[object]) -> Iterator[object]:
        heard.note(self)
        if ears.hook.skip_pass(loader=self):
            return iter(())
        subclasses.begin_anew(self)
        order: Pass | None = ears.hook.loader_start(loader=self)
        iterator = LoaderIterator(self, partial(_open, self, original, order), ears.bus, order)
        ears.hook.loader_opened(loader=self, iterator=iterator)
        return cast(Iterator[object], iterator)

    return __iter__


def _open(loader: DataLoader[object], original: Iter, order: Pass | None) -> Iterator[object]:
    with replaced(loader, {} if order is None else order.replacements):
        kept = loaders.kept_iterator(loader)
        if kept is not None:
            loaders.give_sampler(kept, loader)
        return original(loader)


def _heard_len(ears: Ears, original: Callable[..., int]) -> Callable[..., int]:
    def __len__(self: DataLoader[object]) -> int:
        length: int | None = ears.hook.loader_length(loader=self)
        return original(self) if length is None else length

    return __len__
