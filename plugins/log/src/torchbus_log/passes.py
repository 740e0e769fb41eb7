"""Where the loop is in its data: the pass over a loader, the samples in the batch, the epoch."""

from __future__ import annotations

import time
import weakref
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader
from torchbus.plugin import Context, LoaderIterator, Share

from torchbus_log.totals import Metric, Total, to_host
from torchbus_strategy.batches import collect


class LoggedPass:
    """One pass over a loader, and the values that are logged in it ``on_epoch``.

    ``trains`` is True if a backward has used its batches. ``goes_on`` is True if an earlier run
    began the pass. ``began`` is the time of its first batch, in seconds. ``alike`` is True if all
    ranks have the same batches, and ``divided_evaluation`` if the ranks of an evaluation have
    different batches, or none.
    """

    def __init__(self, iterator: LoaderIterator | None) -> None:
        self.iterator = None if iterator is None else weakref.ref(iterator)
        self.origin = None if iterator is None else iterator.origin
        self.goes_on = iterator is not None and iterator.num_yielded > 1
        self.began = time.perf_counter()
        self.trains = False
        self.samples = 1.0
        self.everywhere = 1.0
        self.alike = False
        self.divided_evaluation = False
        self.totals: dict[tuple[str, str, bool, bool], Total] = {}
        self.metrics: dict[str, Metric] = {}

    def total(self, name: str, reduce: str, sync: bool, prog_bar: bool) -> Total:
        """Return the running total of a name with these options. It is created if needed."""
        key = (name, reduce, sync, prog_bar)
        if key not in self.totals:
            self.totals[key] = Total(reduce)
        return self.totals[key]

    def written(self) -> list[Any]:
        """Return the values so far, for a checkpoint."""
        return [[list(key), to_host(one.parts()), one.weight] for key, one in self.totals.items()]

    def take(self, totals: list[Any]) -> None:
        """Add the values that an earlier run logged in this pass."""
        for key, parts, weight in totals:
            self.total(*key).put(parts, weight)

    @property
    def was_left(self) -> bool:
        """Whether the loop has dropped the iterator (by ``break``, say)."""
        return self.iterator is not None and self.iterator() is None


class OpenPasses:
    """The open passes. The last one yielded the latest batch.

    ``epoch`` counts the passes that train, from 0. ``outside`` stands for the time outside of all
    passes.
    """

    def __init__(self, session: Context) -> None:
        self._session = session
        self._share: Share | None = None
        self._open: list[LoggedPass] = []
        self._fresh: list[LoggedPass] = []
        self.outside = LoggedPass(None)
        self.epoch: int | None = None
        self.samples_trained_on = 0.0
        self._earlier: list[Any] = []

    def open_totals(self) -> list[Any]:
        """Return the values so far of each pass that trains, for a run that resumes in it."""
        return [one.written() for one in self._open if one.trains and not one.was_left]

    def go_on(self, totals: list[Any]) -> None:
        """Give the values of an earlier run to the passes that continue, in their order."""
        self._earlier = totals

    @property
    def current(self) -> LoggedPass:
        """The open pass that yielded the latest batch, or ``outside``."""
        return self._open[-1] if self._open else self.outside

    def record(self, batch: object, iterator: LoaderIterator) -> None:
        """Called when the loop has got a batch."""
        if (
            not self._open
            or self._open[-1].iterator is None
            or self._open[-1].iterator() is not iterator
        ):
            self._turn_to(iterator)
        current, origin = self._open[-1], iterator.origin
        current.alike, current.divided_evaluation = (
            origin.alike,
            bool(origin.evaluates) and not origin.alike,
        )
        self._share = self._session.share
        self._weigh(current, rows(batch), origin.share)
        if current not in self._fresh:
            self._fresh.append(current)

    def _weigh(self, current: LoggedPass, rows: int, share: Share | None) -> None:
        """Set how many samples the batch stands for, on this rank and on all ranks."""
        current.samples, current.everywhere = float(rows), float(rows * self._session.world_size)
        if share is not None:
            current.samples = current.samples if share.weight else 0.0
            current.everywhere = float(share.count or current.everywhere)

    def trained(self) -> None:
        """Called after a backward."""
        for batch in self._session.batches.current:
            known = (
                next((one for one in self._open if one.origin is batch.origin), None)
                if batch.origin.ahead
                else None
            )
            if known is not None:  # a wrapper has fetched later batches since
                self._weigh(known, batch.rows, batch.share)
        # an evaluation in the middle of the pass has ended by now
        still = [one for one in self._fresh if one in self._open and not one.was_left]
        fresh = still or self._fresh
        if not fresh:
            return
        if self.epoch is None:
            self.epoch = 0
        elif not (fresh[0].trains or fresh[0].goes_on):
            self.epoch += 1
            self._earlier = []
        self.samples_trained_on += fresh[0].everywhere
        for one in fresh:
            one.trains = True
        self._fresh.clear()

    @property
    def samples(self) -> float:
        """The number of this rank's samples that a value logged now stands for.

        This is 0 on a rank whose batch only repeats samples.
        """
        if self._open:
            return self._open[-1].samples
        share = self._session.share
        if share is self._share or not share.count:  # the share of a pass that is over
            return 1.0
        return share.weight * share.count / self._session.world_size

    @property
    def counts(self) -> bool:
        """Whether this rank's part of a sum counts. Of ranks with equal data, only the first's."""
        place, world = self._session.world.data, self._session.world
        if self.current.alike or place.parts == 1:
            return world.is_main
        return world.member == 0

    def has(self, loader: DataLoader[object]) -> bool:
        """Whether a pass over the loader is open. On a rank without batches, none is."""
        iterators = [one.iterator() for one in self._open if one.iterator is not None]
        return any(one is not None and one.loader is loader for one in iterators)

    def end(self, loader: DataLoader[object]) -> LoggedPass | None:
        """Called when a loader is exhausted. Remove its latest pass, and return it.

        If the loop has not yet used all batches that a wrapper fetched, return None instead.
        """
        for one in reversed(self._open):
            iterator = None if one.iterator is None else one.iterator()
            if (
                iterator is not None
                and iterator.loader is loader
                and not self._session.batches.waiting(iterator.origin)
            ):
                self._open.remove(one)
                return one
        if self._earlier and not self._open:  # a resumed run got no batch of it
            continued = LoggedPass(None)
            continued.trains = True
            continued.take(self._earlier.pop(0))
            return continued
        return None

    def left(self) -> list[LoggedPass]:
        """Remove and return the passes that the loop has left without exhausting their loaders."""
        lost = [one for one in self._open if one.was_left]
        if lost:
            self._open = [one for one in self._open if not one.was_left]
        return lost

    def _turn_to(self, iterator: LoaderIterator) -> None:
        known = next(
            (one for one in self._open if one.iterator is not None and one.iterator() is iterator),
            None,
        )
        if known is None:
            known = LoggedPass(iterator)
            if known.goes_on and self._earlier:
                known.take(self._earlier.pop(0))
        else:
            self._open.remove(known)
        self._open.append(known)


def rows(batch: object) -> int:
    """Return the number of samples in a batch: dim 0 of its first tensor, or 1 without a tensor."""
    tensors: list[Tensor] = []
    collect(batch, tensors)
    return len(tensors[0]) if tensors and tensors[0].dim() else 1
