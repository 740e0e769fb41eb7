"""Where the loop is in its data."""

from __future__ import annotations

from collections.abc import Sized

from torch.utils.data import BatchSampler
from torchbus import objects
from torchbus.plugin import Context, UsageError

from torchbus_accumulate._compat import DATA_ITERATOR, yielded
from torchbus_strategy.batches import TrackedBatch


class Place:
    """The batch that the loop works on, and whether a backward has used it before.

    If loaders are zipped, the batch of the first one counts. ``counted``: the last new batch.
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

        A batch that was taken together with that one is not new.
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
        """Whether one of the batches that were taken together is the last of its pass."""
        return any(batch.is_last for batch in self._batches.together)

    def ends_pass(self) -> bool:
        """Whether one of the present batches is the last of its pass.

        It looks ahead in the loader if nothing has done so before.
        """
        for batch in self._batches.at_hand:
            iterator = batch.origin.iterator() if batch.origin.iterator is not None else None
            if iterator is not None:
                iterator.find_last()
        return any(batch.is_last for batch in self._batches.at_hand)

    def leave(self) -> None:
        """The pass is over."""
        self._left, self.counted = self._batches.current, None


def _of_loader(batches: tuple[TrackedBatch, ...]) -> TrackedBatch | None:
    for one in batches:
        if one.origin.loader is not None:
            return one
    return None


def expected_samples(batch: TrackedBatch, samples: float, window: int) -> float:
    """Return how many samples the window will have, as far as the loader's length is known.

    It begins with ``batch``, which has so many ``samples``.
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
    """Whether torch's own iterator is at its last batch, for a pass that began too early."""
    begun = [iterator for iterator in objects.alive(DATA_ITERATOR) if yielded(iterator)]
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
