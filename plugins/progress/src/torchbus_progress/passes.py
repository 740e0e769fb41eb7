"""Passes over loaders, which may be nested: an evaluation in an epoch, zipped loaders."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Sized

import torch
from torch.utils.data import DataLoader
from torchbus.plugin import LoaderIterator

from torchbus_progress.words import ProgressState

RATE_OVER_S = 10.0


class Rate:
    """Batches per second over the last ten seconds."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])

    def update(self, done: int) -> float | None:
        """Return the rate. Call it a few times per second."""
        now = time.monotonic()
        while len(self._marks) > 1 and self._marks[1][0] < now - RATE_OVER_S:
            self._marks.popleft()
        self._marks.append((now, done))
        seconds, batches = now - self._marks[0][0], done - self._marks[0][1]
        return batches / seconds if seconds > 0 and batches > 0 else None


class ShownPass:
    """One pass over one loader.

    ``inner``: it began while another one was open. ``goes_on``: an earlier run has begun it.
    """

    def __init__(
        self, loader: DataLoader[object], iterator: LoaderIterator, epoch: int, inner: bool
    ) -> None:
        self.loader = weakref.ref(loader)
        self.iterator = weakref.ref(iterator)
        self.total = _length(loader)
        self.done = 0
        self.trained = self.goes_on = False
        self.inner = inner
        self.epoch = epoch
        self._evaluates = not torch.is_grad_enabled()
        self._started_s = time.monotonic()
        self._rate = Rate()

    @property
    def label(self) -> str:
        evaluates = self._evaluates or (self.done > 1 and not self.trained)
        return "eval" if evaluates else f"epoch {self.epoch}"

    def snapshot(self, metrics: dict[str, float]) -> ProgressState:
        return ProgressState(
            self.label,
            self.done,
            self.total,
            time.monotonic() - self._started_s,
            self._rate.update(self.done),
            metrics,
        )


class ShownPasses:
    """The open passes, the outermost first, and the ``current`` one, which gave the last batch."""

    def __init__(self) -> None:
        self._open: list[ShownPass] = []
        self.current: ShownPass | None = None
        self.epochs = 0

    def opened(self, loader: DataLoader[object], iterator: LoaderIterator) -> None:
        for one in [one for one in self._open if one.iterator() is None or one.loader() is loader]:
            self._close(one)  # the loop left it by break
        self.current = ShownPass(loader, iterator, self.epochs, bool(self._open))
        self._open.append(self.current)

    def record(self, iterator: LoaderIterator) -> ShownPass | None:
        """Record a batch of the loop. Return its pass, if its beginning is known."""
        if self.current is None or self.current.iterator() is not iterator:
            self.current = next((one for one in self._open if one.iterator() is iterator), None)
        if self.current is not None:
            if not self.current.done and iterator.num_yielded > 1 and self.current.epoch:
                self.current.goes_on = True
                self.current.epoch -= 1
            self.current.done = iterator.num_yielded
        return self.current

    def ended(self, loader: DataLoader[object]) -> ShownPass | None:
        """Close the pass that has ended, and all passes inside it. Return it."""
        ended = next((one for one in reversed(self._open) if one.loader() is loader), None)
        if ended is not None:
            for one in self._open[self._open.index(ended) :]:
                self._close(one)
            self.current = self._open[-1] if self._open else None
        return ended

    @property
    def begun(self) -> int:
        """How many epochs have begun, for a run that resumes."""
        return self.epochs + any(map(_is_epoch, self._open))

    def go_on(self, epochs: int) -> None:
        """Continue from a checkpoint, in which ``epochs`` epochs had begun."""
        for one in self._open:
            one.epoch += epochs - self.epochs
        self.epochs = epochs

    def _close(self, one: ShownPass) -> None:
        self._open.remove(one)
        self.epochs += _is_epoch(one)


def _is_epoch(one: ShownPass) -> bool:
    return one.trained and not (one.inner or one.goes_on)


def _length(loader: DataLoader[object]) -> int | None:
    try:
        return len(loader) if isinstance(loader, Sized) else None
    except TypeError:
        return None  # an iterable dataset without a length
