"""The batch, the window and the epoch that the loop is in."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from torch.utils.data import DataLoader
from torchbus.plugin import Origin, UsageError
from torchbus.runtime.services import BatchService

from torchbus_strategy.batches import TrackedBatch


class Position:
    """Counts batches from 1 in each window, and epochs from 0. An epoch is a pass over a loader.

    A batch counts at the first backward on it. ``size``: the number of batches in a whole window of
    this epoch. ``last``: the batch ends its window.
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
        """Count a batch. ``is_last``: none is left in this pass.

        If a wrapper gives a batch again (a list, itertools.cycle), a new epoch begins.
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

        Also if it did so before a checkpoint was written. Not while something holds its batches.
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

    def end_window(self) -> None:
        self.last, self.index = False, 0

    def end_pass(self) -> None:
        self._pass, self._number = None, 0

    def state_dict(self) -> dict[str, object]:
        in_pass = self._pass is not None and not self.left
        return {"epoch": self.epoch, "in_pass": in_pass, "index": 0 if self.last else self.index}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue an epoch and a window that were interrupted, or begin the next epoch."""
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
                f"accumulate_grad_batches={value!r}: {size!r} is a {type(size).__name__}; it must"
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
    """Describe the schedule for ``explain``. ``size`` is that of this epoch."""
    if len(set(schedule.values())) == 1:
        return str(size)
    return ", ".join(f"{batches} from epoch {epoch}" for epoch, batches in schedule.items())
