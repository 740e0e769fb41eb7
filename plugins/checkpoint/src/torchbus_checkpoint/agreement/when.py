"""When a checkpoint is due."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from torchbus.plugin import UsageError, expect


@dataclass
class When:
    """A checkpoint is due after each of these intervals, counted from the last checkpoint.

    If none is given, one is due after every epoch.
    """

    every_n_steps: int | None = None
    every_n_epochs: int | None = None
    every_minutes: float | None = None
    _steps: int = 0
    _epochs: int = 0
    _time_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        for name, types, words in (
            ("every_n_steps", (int, type(None)), "a number of optimizer steps"),
            ("every_n_epochs", (int, type(None)), "a number of epochs"),
            ("every_minutes", (int, float, type(None)), "a number of minutes"),
        ):
            value = getattr(self, name)
            expect(name, value, types, words)
            if value is not None and not value > 0:
                raise UsageError(f"{name}={value}: it must be more than 0")
        if (
            self.every_n_steps is None
            and self.every_n_epochs is None
            and self.every_minutes is None
        ):
            self.every_n_epochs = 1

    def is_due(self, steps: int, epochs: int) -> bool:
        """Whether one is due by the counts, which are equal on all ranks."""
        return _passed(self.every_n_steps, self._steps, steps) or _passed(
            self.every_n_epochs, self._epochs, epochs
        )

    @property
    def time_is_up(self) -> bool:
        """Whether one is due by the clock of this rank."""
        return (
            self.every_minutes is not None
            and time.monotonic() - self._time_s >= 60.0 * self.every_minutes
        )

    def words(self) -> str:
        """Describe the intervals, as in "every 100 steps, every 10 minutes"."""
        given = (
            (self.every_n_steps, "steps"),
            (self.every_n_epochs, "epochs"),
            (self.every_minutes, "minutes"),
        )
        return ", ".join(f"every {value:g} {what}" for value, what in given if value is not None)

    def saved(self, steps: int, epochs: int) -> None:
        self._steps, self._epochs, self._time_s = steps, epochs, time.monotonic()


def _passed(every: int | None, before: int, now: int) -> bool:
    """Whether a multiple of ``every`` lies after ``before``, up to ``now``.

    >>> [_passed(5, 4, now) for now in (4, 5, 6)]
    [False, True, True]
    """
    return every is not None and now // every > before // every
