"""Passes over loaders that end early, and the lengths that loaders then have."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Generator
from dataclasses import dataclass

from torch.utils.data import DataLoader
from torchbus.plugin import Context, LoaderIterator, UsageError, hookimpl, warn

from torchbus_strategy.evaluating import (
    DecidingModels,
    TrainedLoaders,
    in_eval_mode,
    without_gradients,
)


@dataclass(frozen=True)
class Limit:
    """How many batches of a pass an option allows: an int, or as a float a part of them."""

    option: str
    value: int | float

    def of(self, length: int) -> int:
        """Return how many of so many batches. Raises UsageError for a part that is none at all."""
        if isinstance(self.value, int):
            return min(self.value, length)
        count = math.floor(self.value * length)
        if length and not count and self.value:
            raise UsageError(
                f"{self} of a loader that has {length} batches is none: choose a larger part, or"
                " a number of batches"
            )
        return count

    def __str__(self) -> str:
        return f"{self.option}={self.value!r}"


class LimitedPasses:
    """Sets the limit of each pass, by whether it trains or evaluates.

    A loader that has trained evaluates only without gradients. Of another one, the latest pass
    says it, and before its first pass the mode of the models.
    """

    def __init__(self, session: Context, train: Limit | None, evaluate: Limit | None) -> None:
        self._session = session
        self._train, self._evaluate = train, evaluate
        self._models, self._trained = DecidingModels(), TrainedLoaders()
        session.bus.register(self._models, "debug.models")
        session.bus.register(self._trained, "debug.trained")
        self._evaluates: weakref.WeakKeyDictionary[DataLoader[object], bool] = (
            weakref.WeakKeyDictionary()
        )

    @hookimpl(tryfirst=True)
    def loader_start(self, loader: DataLoader[object]) -> None:
        self._evaluates[loader] = self._looks_like_evaluation(loader)

    @hookimpl(tryfirst=True)
    def loader_opened(self, loader: DataLoader[object], iterator: LoaderIterator) -> None:
        limit = self._limit(loader)
        if limit is not None:
            iterator.limit = limit.value if isinstance(limit.value, int) else _part(loader, limit)

    @hookimpl(wrapper=True, trylast=True)
    def loader_length(
        self, loader: DataLoader[object], whole: Callable[[], int]
    ) -> Generator[None, int | None, int | None]:
        length, limit = (yield), self._limit(loader)
        if limit is None:
            return length
        return limit.of(whole() if length is None else length)

    @hookimpl
    def loader_bypassed(self, loader: DataLoader[object]) -> None:
        limit = self._limit(loader)
        if limit is not None:
            warn(
                f"{limit}: {type(loader).__name__} defines its own __iter__, so its passes keep"
                " their length"
            )

    def evaluates(self, loader: DataLoader[object]) -> bool:
        """Whether the loader's pass now, or its next one, counts as evaluation."""
        known = None if loader in self._trained else self._evaluates.get(loader)
        return self._looks_like_evaluation(loader) if known is None else known

    def _looks_like_evaluation(self, loader: DataLoader[object]) -> bool:
        if without_gradients():
            return True
        return loader not in self._trained and bool(in_eval_mode(self._models.now()))

    def _limit(self, loader: DataLoader[object]) -> Limit | None:
        if not self._session.captures(loader):
            return None
        return self._evaluate if self.evaluates(loader) else self._train


def _part(loader: DataLoader[object], limit: Limit) -> int:
    """Return the length of a pass that has a part of the batches."""
    try:
        return DataLoader.__len__(loader)
    except TypeError:
        raise UsageError(
            f"{limit} with a loader over {type(loader.dataset).__name__}, which has no length: give"
            " a number of batches"
        ) from None
