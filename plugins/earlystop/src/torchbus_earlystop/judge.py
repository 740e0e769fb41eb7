"""Decides whether a series of values still improves."""

from __future__ import annotations

import math

from torchbus.plugin import UsageError, expect

MODES = ("min", "max")


class Judge:
    """Judges values, one after the other. ``best`` and ``waited`` are its state."""

    def __init__(
        self,
        patience: int,
        mode: str,
        min_delta: float,
        stopping_threshold: float | None,
        divergence_threshold: float | None,
    ) -> None:
        """The arguments of ``EarlyStop``. Raises UsageError for a wrong one."""
        expect("patience", patience, int, "a number of values")
        expect("min_delta", min_delta, (int, float), "a number")
        optional = (int, float, type(None))
        expect("stopping_threshold", stopping_threshold, optional, "a number, or None")
        expect("divergence_threshold", divergence_threshold, optional, "a number, or None")
        if patience < 1:
            raise UsageError(
                f"patience={patience}: at least one value must be worse before the loop ends"
            )
        if not min_delta >= 0:
            raise UsageError(f"min_delta={min_delta}: it must be 0 or more")
        if mode not in MODES:
            raise UsageError(f"early_stop_mode={mode!r} is unknown: use 'min' or 'max'")
        self._patience = patience
        self._sign = 1.0 if mode == "min" else -1.0
        self._min_delta = min_delta
        self._enough, self._too_bad = stopping_threshold, divergence_threshold
        self.best = math.inf
        self.waited = 0

    def ends(self, value: float) -> bool:
        """Judge a value. Return whether the loop ends with it."""
        if self._sign * value < self.best - self._min_delta:
            self.best, self.waited = self._sign * value, 0
        else:
            self.waited += 1
        return (
            self.waited >= self._patience
            or self._is_better(value, self._enough)
            or (self._too_bad is not None and self._is_better(self._too_bad, value))
        )

    def _is_better(self, value: float, other: float | None) -> bool:
        return other is not None and self._sign * value < self._sign * other

    def __str__(self) -> str:
        found = [f"no better {self._patience} times in a row"]
        found += [] if self._enough is None else [f"better than {self._enough:g}"]
        found += [] if self._too_bad is None else [f"worse than {self._too_bad:g}"]
        best = f", best {self._sign * self.best:g}" if math.isfinite(self.best) else ""
        return ", or ".join(found) + best
