"""Where the loop is in its data: the batch, the window and the epoch."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence, Sized
from typing import Any

from torch.utils.data import BatchSampler, DataLoader
from torchbus import objects
from torchbus.plugin import Context, Origin, UsageError, an
from torchbus.runtime.services import BatchService

from torchbus_accumulate._compat import yielded
from torchbus_strategy.batches import TrackedBatch
from torchbus_strategy.compat import DATA_ITERATOR


class BatchUse:
    """The batch that the loop works on, and whether a backward has used it before.

    If loaders are zipped, the batch of the first loader counts. ``counted`` is the last new batch.
    """

    def __init__(self, session: Context) -> None:
        self._batches = session.batches
        self._left: tuple[TrackedBatch, ...] = ()
        self.counted: TrackedBatch | None = None
        self._last_serial = 0

    @property
    def recent(self) -> bool:
        """Whether the loop works on batches of a loader."""
        return self.latest is not None

    @property
    def latest(self) -> TrackedBatch | None:
        """The batch that fed the latest backward.

        None in a loop without a loader, and after the end of a pass.
        """
        current = self._batches.current
        return None if current is self._left else _of_loader(current)

    @property
    def at_hand(self) -> TrackedBatch | None:
        """The batch of the next backward, or of the latest one."""
        at_hand = self._batches.at_hand
        return None if at_hand is self._left else _of_loader(at_hand)

    def is_new(self, batch: TrackedBatch) -> bool:
        """Whether the batch differs from the last new one.

        A batch of a zipped loader, which came with the last new one, is not new.
        """
        counted = self.counted
        if counted is batch or (
            counted is not None
            and batch.origin is not counted.origin
            and batch.serial <= self._last_serial
        ):
            return False
        serial = batch.serial if batch.origin.ahead else self._batches.count
        self.counted, self._last_serial = batch, max(serial, self._last_serial)
        return True

    @property
    def is_last(self) -> bool:
        """Whether one of the batches that came together (zipped) is the last of its pass."""
        return any(batch.is_last for batch in _in_training(self._batches.together))

    def ends_pass(self) -> bool:
        """Whether one of the present batches is the last of its pass.

        Reads ahead in the loader if that has not been done before.
        """
        at_hand = _in_training(self._batches.at_hand)
        for batch in at_hand:
            iterator = batch.origin.iterator() if batch.origin.iterator is not None else None
            if iterator is not None:
                iterator.find_last()
        return any(batch.is_last for batch in at_hand)

    def leave(self) -> None:
        """Called when the pass is over."""
        self._left, self.counted = self._batches.current, None


def _of_loader(batches: tuple[TrackedBatch, ...]) -> TrackedBatch | None:
    for one in batches if len(batches) == 1 else _in_training(batches):
        if one.origin.loader is not None:
            return one
    return None


def _in_training(batches: Sequence[TrackedBatch]) -> Sequence[TrackedBatch]:
    """Leave out the batches of an evaluation whose outputs the loop holds with their graph.

    Such a pass is over while the training pass continues, which is how a single rank detects it.
    """
    if len(batches) == 1:
        return batches
    return [one for one in batches if not (one.origin.evaluates or one.origin.is_over)] or batches


def expected_samples(batch: TrackedBatch, samples: float, window: int) -> float:
    """Return how many samples the window will have, as far as the loader's length is known.

    The window begins with ``batch``, which has ``samples`` samples.
    """
    length = batch.origin.length
    left = None if length is None else length - batch.number
    whole = samples * (window if left is None or left < 0 else min(window, left + 1))
    loader = batch.origin.loader() if batch.origin.loader is not None else None
    sampler = None if loader is None else loader.batch_sampler
    if type(sampler) is not BatchSampler or sampler.drop_last:
        return whole
    if not isinstance(sampler.sampler, Sized):
        return whole
    remaining = len(sampler.sampler) - (batch.number - 1) * samples
    return min(whole, remaining) if remaining >= samples else whole


def last_by_torch() -> bool:
    """Whether torch's iterator is at its last batch, for a pass that the session does not track.

    Raises UsageError if no loader is being iterated, or if it has no length.
    """
    alive: list[Any] = objects.alive(DATA_ITERATOR)
    begun = [iterator for iterator in alive if yielded(iterator)]
    if not begun:
        raise UsageError(
            "s.is_last_batch: no DataLoader is being iterated. Read it inside a loop over one"
        )
    try:
        return bool(yielded(begun[-1]) == len(begun[-1]))
    except TypeError:
        raise UsageError(
            "s.is_last_batch: the loader has no length; pass 'accumulate' to session(...), so that"
            " it is read ahead"
        ) from None


class WindowPosition:
    """Counts batches from 1 in each window, and epochs from 0. An epoch is a pass over a loader.

    A batch counts at the first backward on it. ``size`` is the number of batches in a whole window
    of this epoch. ``last`` is True if the batch ends its window.
    """

    def __init__(self, windows: Mapping[int, int], batches: BatchService) -> None:
        self._schedule = windows
        self._batches = batches
        self._pass: Origin | None = None
        self._number = 0
        self._loader: weakref.ref[DataLoader[object]] | None = None
        self._resumed = False
        self._was_left = False
        self.epoch = -1
        self.size = at(windows, 0)
        self.index = 0
        self.last = False

    def next_batch(self, batch: TrackedBatch, is_last: bool) -> None:
        """Count a batch. ``is_last`` says that it is the last batch of its pass.

        If a wrapper yields a batch again (a list, itertools.cycle), a new epoch begins.
        """
        if self._pass is not batch.origin or batch.number <= self._number:
            self._begin_pass(batch.origin)
        self._number = batch.number
        self.index = 1 if self.last else self.index + 1
        self.last = is_last or self.index >= self.size

    def _begin_pass(self, origin: Origin) -> None:
        self._pass, self._loader = origin, origin.loader
        self._was_left = False
        if self._resumed:
            self._resumed = False
            return
        self.epoch += 1
        self.size = at(self._schedule, self.epoch)
        self.index = 0

    @property
    def left(self) -> bool:
        """Whether the loop has dropped the iterator in the middle of its pass.

        This is also True if the loop did so before the loaded checkpoint was written. It is False
        while a wrapper still holds batches of the pass.
        """
        return self._was_left if self._pass is None else self._pass.is_over and not self.goes_on

    @property
    def ended(self) -> bool:
        """Whether the loop has exhausted the iterator of its pass."""
        return self._pass is not None and self._pass.ended

    @property
    def goes_on(self) -> bool:
        """Whether a wrapper still holds batches of the pass."""
        return self._pass is not None and self._batches.held(self._pass) > 0

    def is_in(self, loader: DataLoader[object]) -> bool:
        return self._loader is not None and self._loader() is loader

    @property
    def lengths(self) -> list[int]:
        """The number of batches in this pass, or an empty list if it is unknown or 1."""
        length = None if self._pass is None else self._pass.length
        return [] if length is None or length < 2 else [length]

    def end_window(self) -> None:
        self.last, self.index = False, 0

    def end_pass(self) -> None:
        self._pass, self._number = None, 0

    def state_dict(self) -> dict[str, object]:
        in_pass = self._pass is not None and not self.left
        return {"epoch": self.epoch, "in_pass": in_pass, "index": 0 if self.last else self.index}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the interrupted epoch and window, or begin the next epoch."""
        self.epoch, self.index, self.last = state["epoch"], state["index"], False
        self.size = at(self._schedule, max(self.epoch, 0))
        self._pass, self._loader, self._resumed = None, None, state["in_pass"]
        self._was_left = not state["in_pass"]


EXPECTED = (
    "a whole number of batches, at least 1, or a dict from epoch to such a number, as in {0: 8,"
    " 4: 4}"
)


def parse(value: int | Mapping[int, int]) -> dict[int, int]:
    """Return window sizes by first epoch, from a number or a dict. Raises UsageError."""
    windows: dict[int, int] = dict(value) if isinstance(value, Mapping) else {0: value}
    for epoch, size in windows.items():
        if isinstance(size, bool) or not isinstance(size, int):
            raise UsageError(
                f"accumulate_grad_batches={value!r}: {size!r} is {an(type(size).__name__)}; it must"
                f" be {EXPECTED}"
            )
        if size < 1:
            raise UsageError(
                f"accumulate_grad_batches={value!r}: a window of {size} batches; it must"
                f" be {EXPECTED}"
            )
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise UsageError(
                f"accumulate_grad_batches={value!r}: {epoch!r} is not an epoch; epochs count from 0"
            )
    return {0: 1} | windows


def at(schedule: Mapping[int, int], epoch: int) -> int:
    """Return the window size of an epoch.

    >>> [at({0: 8, 4: 2}, epoch) for epoch in (0, 3, 4, 9)]
    [8, 8, 2, 2]
    """
    return schedule[max(first for first in schedule if first <= epoch)]


def describe(schedule: Mapping[int, int], size: int) -> str:
    """Describe the schedule for ``explain``. ``size`` is the window size of this epoch."""
    if len(set(schedule.values())) == 1:
        return str(size)
    return ", ".join(f"{batches} from epoch {epoch}" for epoch, batches in schedule.items())
