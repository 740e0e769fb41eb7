"""Finds the batch that feeds a backward.

A batch is known by its tensors: their reference counts show what a graph has saved.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from torchbus._batches.copies import Copies
from torchbus._batches.kept import Kept
from torchbus._batches.taken import (
    Counting,
    Origin,
    Taken,
    first_of_each_pass,
    only_evaluate,
    share_of,
)
from torchbus._batches.unknown import refuse
from torchbus._bus.markers import hookimpl
from torchbus._session.context import Context


class Batches:
    """The batches that were taken and that live.

    Plugins that need them call ``follow()``. Then, from before each backward on, ``feeding`` holds
    the batches that feed it, and ``session.share`` is theirs. A loop without loaders has none.
    """

    def __init__(self, session: Context) -> None:
        self._session = session
        self._kept = Kept()
        self._thread = threading.get_ident()
        self._dependents: list[str] = []
        self._follows = False
        self._origin: Origin | None = None
        self._copies = Copies()
        self._looked = 0
        self.feeding: tuple[Taken, ...] = ()

    def follow(self, dependent: str = "") -> None:
        """Begin to keep track.

        ``dependent``: what goes wrong if the batch can't be identified, in words. "": only the
        weights of ragged shares.
        """
        if dependent:
            self._dependents.append(dependent)
        if not self._follows:
            self._follows = True
            self._session.bus.register(self, "batches")

    def clear(self) -> None:
        self._kept.clear()
        self.feeding = ()

    @property
    def only_evaluate(self) -> bool:
        """Whether only batches of evaluation feed this backward. No rank has a share of them."""
        return only_evaluate(self.feeding)

    @property
    def count(self) -> int:
        """How many batches were taken."""
        return self._kept.count

    # Events --------------------------------------------------------------------------------------

    @hookimpl(trylast=True)
    def batch_ready(self, batch: object, iterator: Counting) -> None:
        origin = iterator.origin
        if torch.is_grad_enabled() or (origin.trains and not origin.evaluates):
            self.took(Taken(origin, iterator.taken, origin.share, batch))

    def took(self, taken: Taken) -> None:
        """Note a batch that the loop, or a wrapper of its loader, was handed."""
        if not self._follows:
            self._session.share = share_of([taken]) or self._session.share
            return
        self._kept.add(taken)
        if threading.get_ident() != self._thread:
            taken.origin.threaded = True
        elif taken.share is not None:
            self._session.share = taken.share

    @hookimpl(tryfirst=True)
    def before_backward(self) -> None:
        fresh = self._kept.fresh
        if len(fresh) == 1 and fresh[0].origin is self._origin and not fresh[0].origin.ahead:
            self._use_only(fresh[0])
        elif fresh or len(self._kept.used) > 1:
            self._look()

    # Which ---------------------------------------------------------------------------------------

    def waiting(self, origin: Origin) -> int:
        """Return how many batches of a pass wait in a wrapper: taken, alive, and not used."""
        return self._kept.waiting(origin)

    @property
    def fetched(self) -> list[Tensor]:
        """The tensors of all batches that wait in wrappers."""
        return self._kept.fetched

    def held(self, origin: Origin) -> int:
        """Return how many other batches of a pass are alive, used or not."""
        return self._kept.held(origin, self.feeding)

    @property
    def together(self) -> list[Taken]:
        """The batches that feed this backward, and those of other loaders taken with them."""
        passes = [one.origin for one in self.feeding]
        return [
            *self.feeding,
            *[
                one
                for one in self._kept.fresh
                if one.origin not in passes and not (one.origin.ahead or one.origin.is_over)
            ],
        ]

    @property
    def at_hand(self) -> tuple[Taken, ...]:
        """The batches that the loop works on now, before and after their backward."""
        fresh = self._kept.fresh
        if not fresh:
            return self.feeding
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
        if any(one.lives and one.origin is fresh[-1].origin for one in self.feeding):
            return self.feeding
        return (next((one for one in newest if one.lives), newest[-1]),)

    def _look(self) -> None:
        """Choose among several batches."""
        fresh = self._kept.snapshot()
        self._kept.forget_gone()
        # a data set may give the same tensors again
        candidates = {**self._kept.used, **{one.key: one for one in fresh}}
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
            Origin.itself if any_saved else Origin.source,
        )
        self._looked = self.count
        if found and tuple(found) != self.feeding:
            self._use(tuple(found))

    def _guess(self, fresh: list[Taken]) -> list[Taken]:
        """Choose if no graph has saved any of the batches.

        The one that feeds already, while the loop holds it, may feed another backward. Otherwise it
        is the only new one, or the oldest if all are still alive. One that was evaluated feeds none
        while there is another.
        """
        current = self.feeding[-1] if self.feeding else None
        trains = [one for one in fresh if not one.origin.evaluates]
        evaluated = bool(fresh) and not trains
        if evaluated and current is not None and current.lives and not current.origin.evaluates:
            return list(self.feeding)
        fresh = trains or fresh
        newest = [one for one in fresh if one.origin is fresh[-1].origin]
        origin = newest[-1].origin if newest else None if current is None else current.origin
        if (
            origin is not None
            and origin.ended
            and (len(newest) > 1 or (not newest and self.held(origin)))
            and self._gives_again(origin)
        ):
            taken = [one for one in [*newest, *self._kept.used.values()] if one.origin is origin]
            refuse(taken, self._dependents)
        elif not newest or (
            current is not None and current.origin is origin and origin.ahead and current.lives
        ):
            return list(self.feeding)
        if len(newest) > 1:
            newest[-1].origin.ahead = True
            if all(one.lives for one in newest):
                return newest[:1]
            refuse(newest, self._dependents)
        return newest[-1:]

    def _gives_again(self, origin: Origin) -> bool:
        """Whether a list or a cycle holds all batches of a pass, so that being alive proves
        nothing.
        """
        return (
            origin.kept
            or not origin.fed
            or len([one for one in self._kept.used.values() if one.origin is origin and one.lives])
            > 1
        )

    def may_have_fed(self, loader: object) -> bool:
        """Whether a batch of the loader came before a backward, without enough evidence."""
        return self._copies.has(loader)

    def _mark_ahead(self, fresh: list[Taken], found: list[Taken]) -> None:
        for one in found:
            if any(
                other.origin is one.origin and other.number > one.number and other.lives
                for other in fresh
            ):
                one.origin.ahead = True

    def _use_only(self, one: Taken) -> None:
        """Use the only batch taken since the last backward, of the same pass. This is the usual
        case.
        """
        self._kept.use_only(one)
        self.feeding, self._looked = (one,), self.count
        self._session.share = share_of([one]) or self._session.share

    def _use(self, chosen: tuple[Taken, ...]) -> None:
        before, self.feeding = self.feeding, chosen
        self._origin, used = chosen[0].origin, self._kept.used
        self._kept.use(chosen)
        for one in chosen:
            if used.get(one.key) is not one:
                used[one.key] = one
                one.origin.kept |= (
                    one.origin.ended and not one.origin.fed and one.number == 1 != one.origin.length
                )
            elif one not in before:
                one.origin.kept = True
            one.origin.fed = True
        self._session.share = share_of(chosen) or self._session.share
