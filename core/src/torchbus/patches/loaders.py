"""Patches of ``DataLoader``: iterators that emit events, and passes that a plugin replaces."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator, Sized
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from torchbus.compat import loaders
from torchbus.patches.patching import EventEmitter, emits, replace, subclasses
from torchbus.world import Share


@dataclass(eq=False)
class Origin:
    """A pass that batches come from, and what is known about it.

    ``length`` is its number of batches, if known. ``share`` is this rank's share of the current
    batch. ``evaluates`` says why the pass counts as evaluation, or is "". ``trains`` is True if
    gradients were on at its beginning, ``alike`` if every rank gets the same batches, ``ragged`` if
    the ranks' shares weigh differently in some steps, ``used`` once a batch has fed a backward,
    ``ahead`` if batches are read before earlier ones are used, ``threaded`` if another thread reads
    them, ``reused`` if a list or itertools.cycle yields them again, and ``ended`` after the last.
    """

    name: str = "batches that the script makes"
    loader: weakref.ref[DataLoader[object]] | None = None
    iterator: weakref.ref[LoaderIterator] | None = None
    length: int | None = None
    share: Share | None = None
    evaluates: str = ""
    trains: bool = field(default_factory=torch.is_grad_enabled)
    alike: bool = False
    ragged: bool = False
    used: bool = False
    ahead: bool = False
    threaded: bool = False
    reused: bool = False
    ended: bool = False

    def source(self) -> object:
        """Return the source of such batches in any pass: the loader while it exists, else self."""
        loader = None if self.loader is None else self.loader()
        return self if loader is None else loader

    @property
    def is_over(self) -> bool:
        """Whether no more batches come: the loop has exhausted the iterator, or dropped it."""
        return self.ended or (self.iterator is not None and self.iterator() is None)


def remaining_batches(batches: object, count: int) -> Iterator[list[int]] | None:
    """Return the batches after ``count``, if torch's own samplers read a data set in its order."""
    if type(batches) is not BatchSampler or type(batches.sampler) is not SequentialSampler:
        return None
    if count > len(batches):
        return None
    rows = range(len(batches.sampler))[count * batches.batch_size :]
    return iter(BatchSampler(rows, batches.batch_size, batches.drop_last))


class LoaderPass:
    """One pass over a loader, and the attributes to replace while its iterator is made.

    ``has_more`` returns whether the order has another batch for the loop. It is None unless the
    length of the order changes between two steps.
    """

    has_more: Callable[[], bool] | None = None

    def __init__(self, **replacements: object) -> None:
        self.replacements = replacements


@runtime_checkable
class Skipping(Protocol):
    """An iterator over a loader's order that can skip any number of batches at once."""

    def skip(self, count: int) -> None:
        """Skip batches. Raises StopIteration if there are fewer."""


@contextmanager
def replaced(loader: DataLoader[object], attributes: dict[str, object]) -> Iterator[None]:
    """Give the loader other attributes inside the block."""
    mine = {name: loader.__dict__[name] for name in attributes}
    loader.__dict__.update(attributes)
    try:
        yield
    finally:
        loader.__dict__.update(mine)


Iter = Callable[..., Iterator[object]]
Make = Callable[[Iter], Iter]
Kind = type[DataLoader[object]]


class SeenPasses:
    """Remembers the passes that the patch has seen."""

    def __init__(self) -> None:
        self.passes = 0
        self._loaders: weakref.WeakSet[DataLoader[object]] = weakref.WeakSet()

    def note(self, loader: DataLoader[object]) -> None:
        """Record that a pass over this loader begins."""
        self.passes += 1
        self._loaders.add(loader)

    def since(self, passes: int, loader: DataLoader[object]) -> bool:
        """Whether it has seen this loader, or any one after the first ``passes``.

        The loader may have made its iterator long ago, or iterate other loaders.
        """
        return self.passes > passes or loader in self._loaders


def replace_custom_iter(
    emitter: EventEmitter, make_iter: Make, seen: SeenPasses
) -> Callable[[], None]:
    """Patch subclasses with their own ``__iter__``. Return the function that undoes it."""
    undo = ExitStack()

    def patch(kind: Kind) -> None:
        if "__iter__" in vars(kind):
            is_like_torchs = _is_like_torchs(vars(kind)["__iter__"])
            make = make_iter if is_like_torchs else _make_watched(emitter, seen)
            undo.callback(replace(kind, "__iter__", make))

    for kind in subclasses(DataLoader):
        patch(kind)
    undo.callback(_patch_later_ones(patch))
    return undo.close


def recreate_iterator(loader: DataLoader[object]) -> None:
    """Let a StatefulDataLoader make its iterator again, from the same state.

    If it was asked for its state before its first pass, it has made an iterator that the patch
    has not seen.
    """
    if loaders.has_early_iterator(loader):
        stateful: Any = loader
        stateful.load_state_dict(stateful.state_dict())


def _make_watched(emitter: EventEmitter, seen: SeenPasses) -> Make:
    def make(original: Iter) -> Iter:
        def __iter__(self: DataLoader[object]) -> Iterator[object]:
            before = seen.passes
            iterator = original(self)
            if inspect.isgenerator(iterator):
                return _watched(self, iterator, before)
            if not seen.since(before, self):
                emitter.hook.loader_bypassed(loader=self)
            return iterator

        return __iter__

    def _watched(
        loader: DataLoader[object], inner: Iterator[object], before: int
    ) -> Iterator[object]:
        for batch in inner:
            if not seen.since(before, loader):
                emitter.hook.loader_bypassed(loader=loader)
            yield batch
            break
        yield from inner

    return make


def _is_like_torchs(function: Callable[..., object]) -> bool:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return (
        code is not None and loaders.GET_ITERATOR in code.co_names and "super" not in code.co_names
    )


def _patch_later_ones(patch: Callable[[Kind], None]) -> Callable[[], None]:
    def __init_subclass__(cls: Kind, /, **arguments: object) -> None:
        super(DataLoader, cls).__init_subclass__(**arguments)
        patch(cls)

    ours = classmethod(__init_subclass__)
    original = vars(DataLoader).get("__init_subclass__")
    DataLoader.__init_subclass__ = ours  # type: ignore[assignment, method-assign]

    def undo() -> None:
        if vars(DataLoader).get("__init_subclass__") is not ours:
            return
        if original is None:
            del DataLoader.__init_subclass__
        else:
            DataLoader.__init_subclass__ = original  # type: ignore[method-assign]

    return undo


class LoaderIterator:
    """Wraps torch's iterator for the loop, and emits events for every batch.

    Its other attributes, ``__class__`` included, are those of torch's iterator. Like that iterator,
    it can't be copied. A plugin may set ``limit``: the pass ends after that number of batches at
    the latest.
    """

    def __init__(
        self,
        loader: DataLoader[object],
        make: Callable[[], Iterator[object]],
        emitter: EventEmitter,
        order: LoaderPass | None,
    ) -> None:
        self.loader = loader
        self._make = make
        self._inner = inner = make()
        self._wanted = emitter.listeners("batch_wanted")
        self._ready = emitter.listeners("batch_ready")
        self._emitter = emitter
        self.order = order
        self.limit: int | None = None
        self._looks_ahead = self._finds_last = False
        self._ahead: list[object] = []
        self._failed: Exception | None = None
        # torchdata's iterator may continue from a state
        self.num_yielded = loaders.yielded(inner)
        name = f"the loader over {type(loader.dataset).__name__}"
        self.origin = Origin(name, weakref.ref(loader), weakref.ref(self))

    def __iter__(self) -> LoaderIterator:
        return self

    def __next__(self) -> object:
        for listener in self._wanted.now:
            listener(self.loader, self)
        try:
            batch = self._read()
        except StopIteration:
            if not self.ended:
                self.origin.ended, self.origin.length = True, self.num_yielded
                self._emitter.hook.loader_end(loader=self.loader, order=self.order)
            raise
        self.num_yielded += 1
        for listener in self._ready.now:
            instead = listener(self.loader, batch, self.order, self)
            if instead is not None:
                batch = instead
        if self._finds_last:
            self.find_last()
        return batch

    def skip(self, count: int) -> None:
        """Skip ``count`` batches. Raises StopIteration if there are fewer.

        If this process reads a map-style data set itself, skipped batches are not loaded. Otherwise
        they are, because workers and streams have state.
        """
        before = self.num_yielded
        indices = loaders.sampler_iter(self._inner) if self._reads_by_index else None
        fresh = indices is not None and not before
        if isinstance(indices, Skipping):
            indices.skip(count)
        elif fresh and (left := remaining_batches(loaders.index_sampler(self._inner), count)):
            loaders.read_from(self._inner, left)
        elif indices is not None:
            for _ in range(count):
                next(indices)
        else:
            for _ in range(count):
                self._read()
                self.num_yielded += 1
        self.num_yielded = before + count
        self._emitter.hook.batches_skipped(loader=self.loader, order=self.order, count=count)

    def restart(self) -> None:
        """Recreate torch's iterator at the current place of the order.

        Batches that were read ahead, by workers or by the session, are dropped.
        """
        self._ahead.clear()
        self._failed, self._inner = None, self._make()

    def read_ahead(self) -> object:
        """Read the next batch if a worker has made it. The loop gets it, or its error, in turn.

        Returns None if nothing was read.
        """
        if self._ahead or self._failed or self.ended or self._is_full(self.num_yielded):
            return None
        if not loaders.has_ready(self._inner):
            return None
        try:
            self._ahead.extend(islice(self._inner, 1))
        except Exception as error:
            self._failed = error
        return self._ahead[-1] if self._ahead else None

    def find_last(self) -> None:
        """Set ``origin.length`` as soon as the number of batches is known.

        A loader without a length is read one batch ahead of the loop. An order whose length changes
        is asked after each batch.
        """
        has_more = None if self.order is None else self.order.has_more
        if has_more is not None:
            self._finds_last = True
            done = self.num_yielded
            is_last = done and (self._is_full(done) or not has_more())
            self.origin.length = done if is_last else None
            return
        try:
            self.origin.length = len(self.loader)
        except TypeError:
            self._looks_ahead = True
            if self.num_yielded and not self._ahead:
                self._look_ahead(self.num_yielded)

    def wraps(self, iterator: object) -> bool:
        """Whether this object wraps that iterator of torch."""
        return self._inner is iterator

    @property
    def ended(self) -> bool:
        """Whether the loop has exhausted the iterator."""
        return self.origin.ended

    @property
    def _reads_by_index(self) -> bool:
        return (
            not self._ahead
            and type(self._inner) is loaders.SINGLE_PROCESS
            and loaders.dataset_kind(self._inner) == loaders.MAP_STYLE
        )

    def _is_full(self, taken: int) -> bool:
        return self.limit is not None and taken >= self.limit

    def _read(self) -> object:
        if self._is_full(self.num_yielded):
            raise StopIteration
        if self._failed is not None:
            error, self._failed = self._failed, None
            raise error
        batch = self._ahead.pop() if self._ahead else next(self._inner)
        if self._looks_ahead:
            self._look_ahead(self.num_yielded + 1)
        return batch

    def _look_ahead(self, count: int) -> None:
        if not self._is_full(count):
            self._ahead.extend(islice(self._inner, 1))
        if not self._ahead:
            self.origin.length = count

    def __len__(self) -> int:
        length = len(cast(Sized, self._inner))
        return length if self.limit is None else min(length, self.limit)

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
def data_loaders(emitter: EventEmitter) -> Callable[[], None]:
    loaders.check()
    seen = SeenPasses()
    make_iter = partial(_patch_iter, emitter, seen)
    undo = ExitStack()
    undo.callback(replace_custom_iter(emitter, make_iter, seen))
    undo.callback(replace(DataLoader, "__iter__", make_iter))
    undo.callback(replace(DataLoader, "__len__", partial(_patch_len, emitter)))
    return undo.close


def _patch_iter(emitter: EventEmitter, seen: SeenPasses, original: Iter) -> Iter:
    def __iter__(self: DataLoader[object]) -> Iterator[object]:
        seen.note(self)
        if emitter.hook.skip_pass(loader=self):
            return iter(())
        recreate_iterator(self)
        order: LoaderPass | None = emitter.hook.loader_start(loader=self)
        iterator = LoaderIterator(self, partial(_open, self, original, order), emitter, order)
        emitter.hook.loader_opened(loader=self, iterator=iterator)
        return cast(Iterator[object], iterator)

    return __iter__


def _open(loader: DataLoader[object], original: Iter, order: LoaderPass | None) -> Iterator[object]:
    with replaced(loader, {} if order is None else order.replacements):
        iterator = loaders.retained_iterator(loader)
        if iterator is not None:
            loaders.give_sampler(iterator, loader)
        return original(loader)


def _patch_len(emitter: EventEmitter, original: Callable[..., int]) -> Callable[..., int]:
    def __len__(self: DataLoader[object]) -> int:
        whole = partial(original, self)
        length: int | None = emitter.hook.loader_length(loader=self, whole=whole)
        return whole() if length is None else length

    return __len__
