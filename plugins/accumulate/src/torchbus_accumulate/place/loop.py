"""Where the loop is in its data."""

from __future__ import annotations

from torch.utils.data import BatchSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torchbus.plugin import Context, Taken, UsageError, inventory


class Place:
    """The batch of a loader that the loop works on, and whether a backward came upon it before. Of zipped loaders, the first one's counts."""

    def __init__(self, session: Context) -> None:
        self._batches = session.batches
        self._left: tuple[Taken, ...] = ()
        self._counted: Taken | None = None
        self._taken = 0

    @property
    def recent(self) -> bool:
        """Whether the loop works on batches of a loader."""
        return self.taken is not None

    @property
    def taken(self) -> Taken | None:
        """The batch that fed the latest backward; None in a loop without a loader, or after the end of a pass."""
        feeding = self._batches.feeding
        return None if feeding is self._left else _of_loader(feeding)

    @property
    def at_hand(self) -> Taken | None:
        """The batch of the backward that is still to come, or has been."""
        at_hand = self._batches.at_hand
        return None if at_hand is self._left else _of_loader(at_hand)

    def is_new(self, taken: Taken) -> bool:
        """Whether the batch is another one than at the last call that said so. One that was taken along with that one is not."""
        counted = self._counted
        if counted is taken or (counted is not None and taken.origin is not counted.origin and taken.serial <= self._taken):
            return False
        self._counted, self._taken = taken, max(self._batches.count if not taken.origin.ahead else taken.serial, self._taken)
        return True

    @property
    def is_last(self) -> bool:
        """Whether any of the batches that were taken together is the last of its pass."""
        return any(taken.is_last for taken in self._batches.together)

    def ends_pass(self) -> bool:
        """Whether any of the batches that the loop works on is the last of its pass, also where nobody has asked before."""
        for taken in self._batches.at_hand:
            iterator = taken.origin.iterator() if taken.origin.iterator is not None else None
            if iterator is not None:
                iterator.find_last()
        return any(taken.is_last for taken in self._batches.at_hand)

    def leave(self) -> None:
        """The pass is over."""
        self._left, self._counted = self._batches.feeding, None


def _of_loader(taken: tuple[Taken, ...]) -> Taken | None:
    return next((one for one in taken if one.origin.loader is not None), None)


def expected_samples(taken: Taken, samples: float, window: int) -> float:
    """How many samples the window that begins with this batch of ``samples`` will have, as far as the loader tells."""
    length = taken.origin.length
    left = None if length is None else length - taken.number
    whole = samples * (window if left is None or left < 0 else min(window, left + 1))
    loader = taken.origin.loader() if taken.origin.loader is not None else None
    sampler = None if loader is None else loader.batch_sampler
    if type(sampler) is not BatchSampler or sampler.drop_last or not hasattr(sampler.sampler, "__len__"):
        return whole
    rest = len(sampler.sampler) - (taken.number - 1) * samples  # type: ignore[arg-type]
    return min(whole, rest) if rest >= samples else whole


def last_by_torch() -> bool:
    """For a pass that began before anybody listened: what torch's own iterator has counted."""
    begun = [iterator for iterator in inventory.alive(_BaseDataLoaderIter) if iterator._num_yielded]  # type: ignore[type-abstract]
    if not begun:
        raise UsageError("s.is_last_batch: no DataLoader is being iterated")
    try:
        return bool(begun[-1]._num_yielded == len(begun[-1]))
    except TypeError:
        raise UsageError("s.is_last_batch: the loader has no length; pass 'accumulate' to session(...), so that it is read ahead") from None
