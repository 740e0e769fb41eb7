"""Finds the batch that feeds a backward, from the tensors of loaders and the graph."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torchbus.plugin import (
    BackwardCall,
    Context,
    LoaderIterator,
    Origin,
    Share,
    UsageError,
    hookimpl,
)

from torchbus_strategy.compat import use_count

PLAIN = {Tensor}
TENSORS_AT_MOST = 16


def collect(value: object, found: list[Tensor], depth: int = 4) -> None:
    """Append the tensors of a batch, of any shape, to ``found``, also those in attributes.

    It looks at most ``depth`` levels deep, and stops soon after ``TENSORS_AT_MOST`` tensors.
    """
    if isinstance(value, Tensor):
        found.append(value)
    elif depth and len(found) < TENSORS_AT_MOST and not isinstance(value, (str, bytes, int, float)):
        for part in _parts(value):
            collect(part, found, depth - 1)


def _parts(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple)):
        return value[:TENSORS_AT_MOST]
    attributes = getattr(value, "__dict__", None)
    slots = getattr(type(value), "__slots__", ())
    return [
        *(attributes or {}).values(),
        *[getattr(value, name, None) for name in ([slots] if isinstance(slots, str) else slots)],
    ]


class TrackedBatch:
    """A batch from a loader, identified by its tensors until a backward uses it.

    It is the ``number``-th batch of its pass, from 1, and the ``serial``-th of all. ``rows`` is its
    number of samples: the size of dim 0 of its first tensor. ``key`` is the id of that tensor,
    which is the same if the data set yields the same tensors again.
    """

    __slots__ = ("_outside", "_tensors", "key", "number", "origin", "rows", "serial", "share")

    def __init__(self, origin: Origin, number: int, share: Share | None, batch: object) -> None:
        self.origin, self.number, self.share, self.serial = origin, number, share, 0
        parts: Sequence[Any] = batch if type(batch) is list or type(batch) is tuple else (batch,)
        found = parts
        if set(map(type, parts)) != PLAIN:
            found = [part for part in parts if isinstance(part, Tensor)]
            if len(found) != len(parts):
                found = []
                collect(batch, found)
        shape = found[0].shape if found and not found[0].is_nested else ()
        self.rows = shape[0] if shape else 1
        self.key = id(found[0]) if found else id(self)
        self._tensors = list(map(weakref.ref, found))
        self._outside: dict[int, int] = {}

    def move(self, batch: object) -> None:
        """Identify the batch by the tensors of ``batch``, which a wrapper has made of it."""
        found: list[Tensor] = []
        collect(batch, found)
        self.key = id(found[0]) if found else id(self)
        self._tensors = [weakref.ref(tensor) for tensor in found]

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors of the batch that are alive, of any shape and dtype."""
        return [tensor for one in self._tensors if (tensor := one()) is not None]

    def leaves(self) -> list[Tensor]:
        """Return the leaf tensors of the batch, of any shape, that require a gradient."""
        living = [one() for one in self._tensors]
        return [one for one in living if one is not None and one.requires_grad and one.is_leaf]

    @property
    def lives(self) -> bool:
        """Whether a tensor of the batch is alive: in the loop, a wrapper or a graph."""
        return any(one() is not None for one in self._tensors)

    def storages(self) -> set[int]:
        """Return the addresses of the living tensors' memory, which their views share."""
        return {one.untyped_storage().data_ptr() for one in self.tensors if is_plain(one)}

    @property
    def is_in_graph(self) -> bool:
        """Whether a graph has saved a tensor of the batch, or a view of one is alive."""
        return any(_references(one) > self._outside.get(id(one), 0) for one in self.tensors)

    @property
    def references(self) -> int:
        """The number of graphs and views that refer to the tensors. A backward frees some."""
        return sum(map(_references, self.tensors))

    def note_views(self) -> None:
        """Ignore what refers to the tensors now, because a later pass begins.

        The loop holds it, such as rows of a first batch. It is not in a graph of that pass.
        """
        self._outside = {id(one): _references(one) for one in self.tensors}

    @property
    def is_last(self) -> bool:
        """Whether the batch is known to be the last one of its pass."""
        return self.number == self.origin.length


def _references(tensor: Tensor) -> int:
    """Return how many graphs and views refer to a tensor."""
    # the node that accumulates a leaf's gradient refers to it too, while an old loss is alive
    return use_count(tensor) - 1 - (tensor.requires_grad and tensor.is_leaf)


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is in memory, in one piece. Tensors inside of ``torch.func`` are not."""
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.numel() == 0:
        return False
    try:
        return bool(tensor.untyped_storage())
    except NotImplementedError:
        return False


def share_of(in_use: Sequence[TrackedBatch]) -> Share | None:
    """Return the share of the latest batch, None if unknown. Batches of evaluation are whole."""
    shared = [one for one in in_use if one.share is not None]
    if shared:
        return max(shared, key=lambda one: one.serial).share
    return Share() if only_evaluate(in_use) else None


def only_evaluate(in_use: Sequence[TrackedBatch]) -> bool:
    """Whether only batches of evaluation feed a backward. They are not divided among ranks."""
    for one in in_use:
        if not one.origin.evaluates:
            return False
    return bool(in_use)


def counts_of_all(session: Context) -> list[int]:
    """Return the numbers of samples that one process knows: the batch's and the data set's.

    Unknown numbers are left out.
    """
    found = [session.share.count]
    for one in session.batches.current[:1]:
        dataset = getattr(one.origin.source(), "dataset", None)
        with suppress(TypeError, NotImplementedError):
            found.append(len(dataset))  # type: ignore[arg-type]
    return [count for count in found if count]


def rows_here(session: Context) -> int:
    """Return the number of this rank's samples in the batch, 0 if unknown."""
    share = session.share
    return round(share.weight * share.count / session.world.data.parts)


def first_of_each_pass(found: Sequence[TrackedBatch]) -> list[TrackedBatch]:
    """Return the first batch of each pass.

    A wrapper may hold views of prefetched batches, which look like references from a graph.
    """
    first: dict[int, TrackedBatch] = {}
    for one in found:
        known = first.get(id(one.origin))
        if known is None or one.number < known.number:
            first[id(one.origin)] = one
    return list(first.values())


def drop_collected(fresh: Sequence[TrackedBatch]) -> list[TrackedBatch]:
    """Drop batches whose tensors are gone, except the last two of each pass.

    Two show that there were several.
    """
    remaining: list[TrackedBatch] = []
    lost: dict[int, int] = {}
    for one in reversed(fresh):
        if not one.lives:
            lost[id(one.origin)] = lost.get(id(one.origin), 0) + 1
        if one.lives or lost[id(one.origin)] <= 2:
            remaining.append(one)
    return remaining[::-1]


# entries with dead tensors are removed at this number, and then at twice the number that is left
PRUNE_AT = 8


class BatchHistory:
    """The batches that loaders have yielded and that are still alive.

    ``fresh`` lists those that are not used yet, the newest last. ``used`` has the others by their
    keys. ``count`` is the number of all batches so far.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._room = {"fresh": PRUNE_AT, "used": PRUNE_AT}
        self.fresh: list[TrackedBatch] = []
        self.used: dict[int, TrackedBatch] = {}
        self.count = 0

    def clear(self) -> None:
        self.fresh, self.used = [], {}

    def add(self, batch: TrackedBatch) -> None:
        """Add a batch. Threads other than the loop's may call it."""
        with self._lock:
            if len(self.fresh) >= self._room["fresh"]:
                self.fresh = drop_collected(self.fresh)
                self._room["fresh"] = max(PRUNE_AT, 2 * len(self.fresh))
            self.count += 1
            batch.serial = self.count
            self.fresh.append(batch)

    def snapshot(self) -> list[TrackedBatch]:
        """Copy the list of fresh batches, to which other threads may add."""
        with self._lock:
            return list(self.fresh)

    def use_only(self, one: TrackedBatch) -> None:
        """Mark the only batch since the last backward as used."""
        with self._lock:
            self.fresh.remove(one)
        self.used[one.key] = one
        if len(self.used) >= self._room["used"]:
            self.forget_lost()

    def use(self, chosen: tuple[TrackedBatch, ...]) -> None:
        """Remove the chosen batches, and those whose tensors are gone, from the fresh ones."""
        with self._lock:
            if len(self.fresh) == 1 and self.fresh[0] is chosen[0]:
                self.fresh.clear()
            else:
                self.fresh = [one for one in self.fresh if one not in chosen and one.lives]
        if len(self.used) >= self._room["used"]:
            self.forget_lost()

    def forget_lost(self) -> None:
        self.used = {key: one for key, one in self.used.items() if one.lives}
        self._room["used"] = max(PRUNE_AT, 2 * len(self.used))

    def note_views(self) -> None:
        """Ignore what refers to the batches now, because a pass begins.

        Outputs of an evaluation that the loop still holds do not feed a backward of that pass.
        """
        evaluated = [one for one in self.snapshot() if one.origin.evaluates]
        for one in [*self.used.values(), *evaluated]:
            one.note_views()

    # Which of them wait ---------------------------------------------------------------------------

    def waiting(self, origin: Origin) -> int:
        """Return how many batches of a pass wait in a wrapper that fetches ahead.

        They are alive, and not used yet.
        """
        return _ahead(origin, [one for one in self.fresh if one.origin is origin and one.lives])

    @property
    def fetched(self) -> list[Tensor]:
        """The tensors of all batches that wait in wrappers."""
        return [
            tensor for one in list(self.fresh) if self.waiting(one.origin) for tensor in one.tensors
        ]

    def held(self, origin: Origin, in_use: Iterable[TrackedBatch]) -> int:
        """Return how many batches of a pass are alive, apart from those that feed now."""
        remaining, in_use = [*self.snapshot(), *self.used.values()], list(in_use)
        living = [
            one for one in remaining if one.origin is origin and one.lives and one not in in_use
        ]
        return _ahead(origin, living)


def _ahead(origin: Origin, living: list[TrackedBatch]) -> int:
    """Return how many of the living batches wait.

    A single batch is the one that the loop works on, unless the pass is known to fetch ahead.
    """
    return len(living) if origin.ahead or len(living) > 1 else 0


UNKNOWN = (
    "{} batches of {} were read before this backward, and the session can't find out which of them"
    " feeds it: the loop fetches ahead, or skips batches, and computes with copies (.float(),"
    " .to(...)). This decides {}. Keep the loader's own tensors until they are used, or let"
    " DataLoader(num_workers=..., pin_memory=True) fetch ahead{}"
)


def refuse(batches: Sequence[TrackedBatch], dependents: Sequence[str]) -> None:
    """Raise UsageError if the batches' shares differ, or if there are ``dependents``, in words."""
    origin = batches[-1].origin
    unlike = (
        origin.ragged or len({one.share.weight for one in batches if one.share is not None}) > 1
    )
    needs = [*(["the weight of the ragged end"] if unlike else []), *dependents]
    if needs:
        last = ", or use drop_last=True" if needs == needs[:unlike] else ""
        raise UsageError(UNKNOWN.format(len(batches), origin.name, " and ".join(needs), last))


class Copies:
    """Counts batches that came before a backward and that no graph shows.

    One batch before a backward proves nothing: the loop may only look at it. A batch before each of
    two backwards shows that the loop computes with them, if both come from one source: from one
    pass or, if no graph shows any batch, from one loader.
    """

    def __init__(self) -> None:
        self._times: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()

    def among(
        self,
        fresh: list[TrackedBatch],
        found: list[TrackedBatch],
        source: Callable[[Origin], object],
    ) -> list[TrackedBatch]:
        """Return the batches of passes not in ``found`` that the loop computes with."""
        passes = {id(one.origin) for one in found}
        last = {
            id(one.origin): one
            for one in fresh
            if id(one.origin) not in passes and not (one.origin.evaluates or one.origin.ahead)
        }
        for one in last.values():
            self._times[source(one.origin)] = self._times.get(source(one.origin), 0) + 1
        return [one for one in last.values() if self._times[source(one.origin)] > 1]

    def has(self, loader: object) -> bool:
        """Whether one of a loader's batches came before a backward."""
        return loader in self._times


class Batches:
    """Tracks batches, and finds the one that feeds a backward.

    Plugins that need the batches call ``follow()``. From then on, before each backward, ``current``
    is set to the batches that feed it, and ``session.share`` to their share. ``current`` is empty
    in a loop without loaders.
    """

    def __init__(self, session: Context) -> None:
        self._session = session
        self._history = BatchHistory()
        self._thread = threading.get_ident()
        self._dependents: list[str] = []
        self._follows = False
        self._origin: Origin | None = None
        self._copies = Copies()
        self._looked = 0
        self.current: tuple[TrackedBatch, ...] = ()

    def follow(self, dependent: str = "") -> None:
        """Begin to keep track.

        ``dependent`` says in words, for an error, what depends on the batch. If it is empty, only
        the weight of the last, smaller batch does.
        """
        if dependent:
            self._dependents.append(dependent)
        if not self._follows:
            self._follows = True
            self._session.bus.register(self, "strategy.batches")

    def clear(self) -> None:
        self._history.clear()
        self.current = ()

    @property
    def count(self) -> int:
        """The number of batches so far."""
        return self._history.count

    # Events --------------------------------------------------------------------------------------

    @hookimpl(trylast=True)
    def batch_ready(
        self, loader: object, batch: object, order: object, iterator: LoaderIterator
    ) -> None:
        origin = iterator.origin
        if torch.is_grad_enabled() or (origin.trains and not origin.evaluates):
            self.record(TrackedBatch(origin, iterator.num_yielded, origin.share, batch))

    def record(self, tracked: TrackedBatch) -> None:
        """Note a batch that the loop, or a wrapper of its loader, has received."""
        if not self._follows:
            self._session.share = share_of([tracked]) or self._session.share
            return
        if tracked.number == 1:
            self._history.note_views()
        self._history.add(tracked)
        if threading.get_ident() != self._thread:
            tracked.origin.threaded = True
        elif tracked.share is not None:
            self._session.share = tracked.share

    def moved(self, before: object, after: object) -> None:
        """Note that a loader's wrapper yields ``after``, a copy of the batch ``before``."""
        found: list[Tensor] = []
        collect(before, found)
        for one in self._history.snapshot():
            if any(mine is theirs for mine in one.tensors for theirs in found):
                one.move(after)

    @hookimpl(tryfirst=True)
    def before_backward(self, call: BackwardCall) -> None:
        fresh = self._history.fresh
        if len(fresh) == 1 and (one := fresh[0]).origin is self._origin and not one.origin.ahead:
            self._use_only(one)
        elif fresh or len(self._history.used) > 1:
            self._look()

    # Which ---------------------------------------------------------------------------------------

    def waiting(self, origin: Origin) -> int:
        """Return how many batches of a pass wait in a wrapper: alive, and not used yet."""
        return self._history.waiting(origin)

    @property
    def fetched(self) -> list[Tensor]:
        """The tensors of all batches that wait in wrappers."""
        return self._history.fetched

    def held(self, origin: Origin) -> int:
        """Return how many other batches of a pass are alive, used or not."""
        return self._history.held(origin, self.current)

    @property
    def together(self) -> list[TrackedBatch]:
        """The batches that feed this backward, and unused batches of other passes beside them."""
        passes = [one.origin for one in self.current]
        return [
            *self.current,
            *[
                one
                for one in self._history.fresh
                if one.origin not in passes and not (one.origin.ahead or one.origin.is_over)
            ],
        ]

    @property
    def at_hand(self) -> tuple[TrackedBatch, ...]:
        """The batches that the loop works on now, before and after their backward."""
        fresh = self._history.fresh
        if not fresh:
            return self.current
        newest = [one for one in fresh if one.origin is fresh[-1].origin]
        ahead = fresh[-1].origin.ahead or len([one for one in newest if one.lives]) > 1
        if not ahead:
            return tuple(
                {
                    id(one.origin): one
                    for one in fresh
                    if one.origin is fresh[-1].origin or not one.origin.is_over
                }.values()
            )
        if any(one.lives and one.origin is fresh[-1].origin for one in self.current):
            return self.current
        return (next((one for one in newest if one.lives), newest[-1]),)

    def _look(self) -> None:
        """Choose among several batches."""
        fresh = self._history.snapshot()
        self._history.forget_lost()
        # a data set may give the same tensors again
        candidates = {**self._history.used, **{one.key: one for one in fresh}}
        found = first_of_each_pass(
            [one for one in reversed(candidates.values()) if one.is_in_graph]
        )
        any_saved = bool(found)
        if found:
            self._mark_ahead(fresh, found)
        else:
            found = self._guess(fresh)
        found += self._copies.among(
            [one for one in fresh if one.serial > self._looked],
            found,
            (lambda origin: origin) if any_saved else Origin.source,
        )
        self._looked = self.count
        if found and tuple(found) != self.current:
            self._use(tuple(found))

    def _guess(self, fresh: list[TrackedBatch]) -> list[TrackedBatch]:
        """Choose a batch if no graph has saved any of them.

        The current batch feeds another backward if there is no new one, or if the pass fetches
        ahead and the loop still holds the current one. Otherwise it is the only new batch, or the
        oldest new one if all are still alive. A batch of evaluation is chosen only if there is no
        other.
        """
        current = self.current[-1] if self.current else None
        trains = [one for one in fresh if not one.origin.evaluates]
        evaluated = bool(fresh) and not trains
        if evaluated and current is not None and current.lives and not current.origin.evaluates:
            return list(self.current)
        fresh = trains or fresh
        newest = [one for one in fresh if one.origin is fresh[-1].origin]
        origin = newest[-1].origin if newest else None if current is None else current.origin
        if (
            origin is not None
            and origin.ended
            and (len(newest) > 1 or (not newest and self.held(origin)))
            and self._gives_again(origin)
        ):
            batches = [
                one for one in [*newest, *self._history.used.values()] if one.origin is origin
            ]
            refuse(batches, self._dependents)
        elif not newest or (
            current is not None and current.origin is origin and origin.ahead and current.lives
        ):
            return list(self.current)
        if len(newest) > 1:
            newest[-1].origin.ahead = True
            if all(one.lives for one in newest):
                return newest[:1]
            refuse(newest, self._dependents)
        return newest[-1:]

    def _gives_again(self, origin: Origin) -> bool:
        """Whether a list or a cycle may hold all batches of a pass.

        Then a batch that is alive may have been used.
        """
        return (
            origin.reused
            or not origin.used
            or len(
                [one for one in self._history.used.values() if one.origin is origin and one.lives]
            )
            > 1
        )

    def may_have_been_used(self, loader: object) -> bool:
        """Whether a batch of the loader came before a backward whose graph does not show it."""
        return self._copies.has(loader)

    def _mark_ahead(self, fresh: list[TrackedBatch], found: list[TrackedBatch]) -> None:
        for one in found:
            if any(
                other.origin is one.origin and other.number > one.number and other.lives
                for other in fresh
            ):
                one.origin.ahead = True

    def _use_only(self, one: TrackedBatch) -> None:
        """Use the only batch since the last backward, of the same pass: the usual case."""
        self._history.use_only(one)
        self.current, self._looked = (one,), self.count
        share = one.share or share_of(self.current)
        if share is not None:
            self._session.share = share

    def _use(self, chosen: tuple[TrackedBatch, ...]) -> None:
        before, self.current = self.current, chosen
        self._origin, used = chosen[0].origin, self._history.used
        self._history.use(chosen)
        for one in chosen:
            if used.get(one.key) is not one:
                used[one.key] = one
                one.origin.reused |= (
                    one.origin.ended
                    and not one.origin.used
                    and one.number == 1 != one.origin.length
                )
            elif one not in before:
                one.origin.reused = True
            one.origin.used = True
        self._session.share = share_of(chosen) or self._session.share
