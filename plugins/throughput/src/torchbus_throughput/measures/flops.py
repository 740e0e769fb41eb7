"""The floating-point operations of a sample, counted once in an early step of the loop."""

from __future__ import annotations

import math
import threading

import torch
from torchbus.plugin import warn

from torchbus_throughput import _compat
from torchbus_throughput.measures.counts import Tally

STEP = 1  # after this step: the first one makes what later ones use again


class Flops:
    """Counts all that runs between the end of a real step and the end of the next.

    This is what the loop's own forward and backward do, however it calls them: each operation runs
    as before, and its shapes are read. ``given``: FLOPs of a sample, if the user knows them.
    ``dtype``: in which most of them are computed.

    Source: torch.utils.flop_counter.FlopCounterMode
    """

    def __init__(self, given: float | None) -> None:
        self._thread = threading.get_ident()
        self._graphs_before = _compat.compiled_graphs()
        self._per_sample = given
        self._per_step: float | None = None
        self._counter: _compat.CountedOps | None = None
        self._is_on = False
        self._began: Tally | None = None
        self._counted: Tally | None = None
        self.is_done = given is not None
        self.dtype = torch.get_default_dtype()
        self.unknown: dict[str, int] = {}

    def of(self, tally: Tally) -> float:
        """Return the operations of a window. NaN until they were counted."""
        if self._per_sample is not None:
            return self._per_sample * tally.samples if tally.batches else math.nan
        return math.nan if self._per_step is None else self._per_step * tally.steps

    def described(self) -> str:
        """Describe the known operations."""
        if self._per_sample is not None:
            return f"{self._per_sample:_.0f} FLOPs per sample"
        return "FLOPs per sample: counted in an early step"

    def stepped(self, now: Tally) -> bool:
        """A real step is over. Begin to count, or end. Return whether the count has ended."""
        if self.is_done or now.steps < STEP:
            return False
        if self._began is None:
            self.go_on(now)
        elif self._counted is None and now.steps > self._began.steps:
            self._counted = now.since(self._began)
        return self._end()

    def pause(self) -> None:
        """Count nothing until ``go_on``: a loader begins, whose workers would count, too."""
        counter = self._counter if self._is_on and self._is_here else None
        if counter is not None and _compat.is_innermost(counter):
            counter.end()
            self._is_on = False

    def go_on(self, now: Tally) -> None:
        """The loop is about to train. Count, if this is a step to be counted.

        A mode that the loop has begun must end first, so it may take some batches.
        """
        if self.is_done or now.steps < STEP or not self._is_here or self._end():
            return
        if not self._is_on and _compat.is_free():
            if self._counter is None:
                self._begin(now)
            if self._counter is not None:
                self._counter.begin()
                self._is_on = True

    def _begin(self, now: Tally) -> None:
        if _compat.compiled_graphs() > self._graphs_before:
            self.is_done = True
            warn(
                "flops=True: the loop runs compiled code, whose operations can't be counted without"
                " changing how they are computed: no FLOPs are logged. Pass flops=<FLOPs per"
                " sample>, which you get from a run without torch.compile"
            )
        else:
            self._began, self._counter = now, _compat.CountedOps()

    def _end(self) -> bool:
        """Return whether the count has ended now."""
        if self._counted is None:
            return False
        self.pause()
        if not self._is_on:
            self._finish(self._counted)
        return self.is_done

    def _finish(self, counted: Tally) -> None:
        assert self._counter is not None
        counter, self._counter, self.is_done = self._counter, None, True
        if counted.rows:
            self._per_sample = counter.total / counted.rows
        else:
            self._per_step = counter.total / max(1, counted.steps)
        self.dtype = max(
            counter.by_dtype, key=lambda one: counter.by_dtype[one], default=self.dtype
        )
        self.unknown = dict(counter.unknown)
        if self.unknown:
            named = ", ".join(f"{name} ({times}x)" for name, times in self.unknown.items())
            warn(
                f"flops=True: no formula for {named}: counted as 0 FLOPs. Give one with"
                " torch.utils.flop_counter.register_flop_formula before the session"
            )

    @property
    def _is_here(self) -> bool:
        """Whether this is the loop's thread: others have their own modes."""
        return threading.get_ident() == self._thread
