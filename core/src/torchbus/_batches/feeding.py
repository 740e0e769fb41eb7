"""Which batch feeds this backward. A batch is known by its tensors: what a graph has saved of them is seen in their counts."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchbus._batches.taken import Origin, Taken, first_of_each_pass, without_gone
from torchbus.errors import UsageError
from torchbus.events import hookimpl

if TYPE_CHECKING:
    from torchbus._seams.loader import LoaderIterator
    from torchbus._session.context import Context

KEPT = 8  # so many entries before those whose tensors are gone are looked for; then twice as many as are left
UNKNOWN = (
    "{} batches of {} were taken before this backward, and nobody can tell which of them feeds it: the loop fetches ahead, or leaves batches out, "
    "and computes with copies (.float(), .to(...)), of which the originals are gone. It decides {}. Keep the loader's own tensors until they are "
    "used, or take the wrapper away: DataLoader(num_workers=..., pin_memory=True) fetches ahead as well{}"
)


class Batches:
    """The batches that were taken and that live. Plugins that need it call ``follow()``; then ``feeding`` are, from before each backward,
    the batches that feed it (none in a loop without loaders), and ``session.share`` is theirs. ``count``: so many were taken."""

    def __init__(self, session: Context) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._thread = threading.get_ident()
        self._fresh: list[Taken] = []
        self._used: dict[int, Taken] = {}
        self._room = {"fresh": KEPT, "used": KEPT}
        self._dependents: list[str] = []
        self._follows = False
        self._origin: Origin | None = None
        self._copies: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
        self.count = 0
        self._looked = 0
        self.feeding: tuple[Taken, ...] = ()

    def follow(self, dependent: str = "") -> None:
        """Begin to keep track. ``dependent``: what goes wrong where the batch can't be told, in words; "" if only ragged shares do."""
        if dependent:
            self._dependents.append(dependent)
        if not self._follows:
            self._follows = True
            self._session.bus.register(self, "batches")

    def clear(self) -> None:
        self._fresh, self._used, self.feeding = [], {}, ()

    # Events ----------------------------------------------------------------------------------------------------

    @hookimpl(trylast=True)
    def batch_ready(self, batch: Any, iterator: LoaderIterator) -> None:
        origin = iterator.origin
        if torch.is_grad_enabled() or (origin.trains and not origin.evaluates):
            self.took(Taken(origin, iterator.taken, origin.share, batch))

    def took(self, taken: Taken) -> None:
        """The loop, or a wrapper of its loader, was handed a batch."""
        if not self._follows:
            self._session.share = taken.share or self._session.share
            return
        with self._lock:
            if len(self._fresh) >= self._room["fresh"]:
                self._fresh = without_gone(self._fresh)
                self._room["fresh"] = max(KEPT, 2 * len(self._fresh))
            self.count += 1
            taken.serial = self.count
            self._fresh.append(taken)
        if threading.get_ident() != self._thread:
            taken.origin.threaded = True
        elif taken.share is not None:
            self._session.share = taken.share

    @hookimpl(tryfirst=True)
    def before_backward(self) -> None:
        fresh = self._fresh
        if len(fresh) == 1 and fresh[0].origin is self._origin and not fresh[0].origin.ahead:
            self._use_only(fresh[0])
        elif fresh or len(self._used) > 1:
            self._look()

    # Which -----------------------------------------------------------------------------------------------------

    def waiting(self, origin: Origin) -> int:
        """How many batches of a pass wait in a wrapper that fetches ahead: taken, still there, and not used."""
        living = [one for one in self._fresh if one.origin is origin and one.lives]
        return len(living) if origin.ahead or len(living) > 1 else 0

    @property
    def fetched(self) -> list[Tensor]:
        """The tensors of all batches that wait in wrappers."""
        return [tensor for one in list(self._fresh) if self.waiting(one.origin) for tensor in one.tensors]

    def held(self, origin: Origin) -> int:
        """How many batches of a pass, used or not, are there to be used again or for the first time."""
        with self._lock:
            kept = [*self._fresh, *self._used.values()]
        living = [one for one in kept if one.origin is origin and one.lives and one not in self.feeding]
        return len(living) if origin.ahead or len(living) > 1 else 0

    @property
    def together(self) -> list[Taken]:
        """The batches that feed this backward, and those of other loaders that were taken with them."""
        passes = [one.origin for one in self.feeding]
        return [*self.feeding, *[one for one in self._fresh if one.origin not in passes and not (one.origin.ahead or one.origin.is_over)]]

    @property
    def at_hand(self) -> tuple[Taken, ...]:
        """The batches that the loop works on now, before their backward and after it, as far as that can be told."""
        fresh = self._fresh
        if not fresh:
            return self.feeding
        newest = [one for one in fresh if one.origin is fresh[-1].origin]
        ahead = fresh[-1].origin.ahead or len([one for one in newest if one.lives]) > 1
        if not ahead:
            return tuple({id(one.origin): one for one in fresh if one.origin is fresh[-1].origin or not one.origin.is_over}.values())
        if any(one.lives and one.origin is fresh[-1].origin for one in self.feeding):
            return self.feeding
        return (next((one for one in newest if one.lives), newest[-1]),)

    def _look(self) -> None:
        """More than one batch might be it."""
        with self._lock:
            fresh = list(self._fresh)
        self._forget_gone()
        candidates = {**self._used, **{one.key: one for one in fresh}}  # a data set may give the same tensors again
        found = first_of_each_pass([one for one in reversed(candidates.values()) if one.is_in_graph])
        any_saved = bool(found)
        if found:
            self._mark_ahead(fresh, found)
        else:
            found = self._guess(fresh)
        found += self._copied([one for one in fresh if one.serial > self._looked], found, Origin.itself if any_saved else Origin.source)
        self._looked = self.count
        if found and tuple(found) != self.feeding:
            self._use(tuple(found))

    def _guess(self, fresh: list[Taken]) -> list[Taken]:
        """No graph has saved any of them. The one that feeds already, while the loop holds it (another backward on it); else the only new
        one, or the oldest where all are still held."""
        current = self.feeding[-1] if self.feeding else None
        newest = [one for one in fresh if one.origin is fresh[-1].origin]
        origin = newest[-1].origin if newest else None if current is None else current.origin
        if origin is not None and origin.ended and (len(newest) > 1 or (not newest and self.held(origin))) and self._gives_again(origin):
            self._refuse_unknown([one for one in [*newest, *self._used.values()] if one.origin is origin])
        elif not newest or (current is not None and current.origin is origin and origin.ahead and current.lives):
            return list(self.feeding)
        if len(newest) > 1:
            newest[-1].origin.ahead = True
            if all(one.lives for one in newest):
                return newest[:1]
            self._refuse_unknown(newest)
        return newest[-1:]

    def _gives_again(self, origin: Origin) -> bool:
        """Whether a list or a cycle has all batches of a pass, so that what the loop holds says nothing."""
        return origin.kept or not origin.fed or len([one for one in self._used.values() if one.origin is origin and one.lives]) > 1

    def _copied(self, fresh: list[Taken], found: list[Taken], source: Callable[[Origin], object]) -> list[Taken]:
        """Batches of other passes: looked at, or computed with in the form of copies. One before a backward proves nothing (it may be a
        fixed one to look at), but before each of two from one source it does: from one pass, or, where all are copies, from one loader."""
        passes = {id(one.origin) for one in found}
        last = {id(one.origin): one for one in fresh if id(one.origin) not in passes and not (one.origin.evaluates or one.origin.ahead)}
        for one in last.values():
            self._copies[source(one.origin)] = self._copies.get(source(one.origin), 0) + 1
        return [one for one in last.values() if self._copies[source(one.origin)] > 1]

    def may_have_fed(self, loader: object) -> bool:
        """Whether a batch of a loader came before a backward, though that was not enough to tell."""
        return loader in self._copies

    def _mark_ahead(self, fresh: list[Taken], found: list[Taken]) -> None:
        for one in found:
            if any(other.origin is one.origin and other.number > one.number and other.lives for other in fresh):
                one.origin.ahead = True

    def _use_only(self, one: Taken) -> None:
        """The one that was taken since the last backward, of the same pass: nearly always so."""
        with self._lock:
            self._fresh.remove(one)
        self.feeding, self._looked = (one,), self.count
        if one.share is not None:
            self._session.share = one.share
        self._used[one.key] = one
        if len(self._used) >= self._room["used"]:
            self._forget_gone()

    def _use(self, chosen: tuple[Taken, ...]) -> None:
        before, self.feeding = self.feeding, chosen
        self._origin = chosen[0].origin
        with self._lock:
            if len(self._fresh) == 1 and self._fresh[0] is chosen[0]:
                self._fresh.clear()
            else:
                self._fresh = [one for one in self._fresh if one not in chosen and one.lives]
        if len(self._used) >= self._room["used"]:
            self._forget_gone()
        for one in chosen:
            if self._used.get(one.key) is not one:
                self._used[one.key] = one
                one.origin.kept |= one.origin.ended and not one.origin.fed and one.number == 1 != one.origin.length
            elif one not in before:
                one.origin.kept = True
            one.origin.fed = True
        shared = [one for one in chosen if one.share is not None]
        if shared:
            self._session.share = max(shared, key=_serial).share or self._session.share

    def _forget_gone(self) -> None:
        self._used = {key: one for key, one in self._used.items() if one.lives}
        self._room["used"] = max(KEPT, 2 * len(self._used))

    def _refuse_unknown(self, taken: list[Taken]) -> None:
        origin = taken[-1].origin
        unlike = origin.ragged or len({one.share.weight for one in taken if one.share is not None}) > 1
        needs = [*(["the weight of the ragged end"] if unlike else []), *self._dependents]
        if needs:
            last = ", or use drop_last=True" if needs == needs[:unlike] else ""
            raise UsageError(UNKNOWN.format(len(taken), origin.name, " and ".join(needs), last))


def _serial(one: Taken) -> int:
    return one.serial
