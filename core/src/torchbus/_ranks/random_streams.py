"""Random numbers: one common stream for the order of data and for evaluation, one per rank in training."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


class RandomStreams:
    """Until ``split`` there is one stream, the process's own generators (torch, CUDA, ``random``, NumPy if imported).

    From then on there are three: "order", from which the order of data is drawn, equal on all ranks; "own", this
    rank's, for training; and "evaluation", which is derived each time from where "order" and ``clock`` stand, and leaves it
    there, so that evaluation is alike on all ranks, and one that only some ranks run can't upset the order of data. While no trained
    model is alive (``rest``), what would be drawn from "own" is drawn from "order": the next run's splits and models are common.
    ``clock`` is a number that is equal on all ranks at the same place of the loop. A run that goes on from a ``state`` counts on from where
    that one stood.
    """

    def __init__(self, clock: Callable[[], int] = int) -> None:
        self._states: dict[str, dict[str, Any]] = {}
        self._current = "order"
        self._rests = False
        self._clock = clock
        self._clock_before = 0
        self._marked: dict[str, Any] = {}
        self._drew = False

    @property
    def current(self) -> str:
        """The stream that is being drawn from."""
        return self._current

    @property
    def now(self) -> int:
        """The clock, over all runs."""
        return self._clock_before + self._clock()

    @property
    def is_split(self) -> bool:
        """Whether this rank has a stream of its own, and draws from it in training."""
        return bool(self._states) and not self._rests

    def mark(self) -> None:
        """From here on ``drew_in_evaluation`` looks."""
        self._drew = False
        self._marked = read() if self._current == "evaluation" else {}

    @property
    def drew_in_evaluation(self) -> bool:
        """Whether "evaluation", which leaves no trace in the other streams, was drawn from since ``mark``."""
        return self._drew or (self._current == "evaluation" and not _same(read(), self._marked))

    def split(self, rank: int) -> None:
        """Give this rank a stream of its own, derived from the common one, which stays as it is; or back to it, after ``rest``."""
        if self._rests:
            self._rests = False
            return self.use("own")
        self._states["order"] = read()
        seed(int(torch.randint(2**62, (1,))) + rank)
        self._current = "own"

    def rest(self) -> None:
        """Nothing is trained any more: draw from "order" until ``split`` is called again. Nothing happens before the first ``split``."""
        if self._states:
            self._rests = True
            self.use("order")

    def forget(self) -> None:
        """Leave the generators as they are from now on."""
        self._states.clear()
        self._rests = False

    def use(self, stream: str) -> None:
        """Draw from "order", "own" or "evaluation". Nothing happens before ``split``."""
        stream = "order" if self._rests and stream == "own" else stream
        if not self._states or stream == self._current:
            return
        if self._current == "evaluation":
            self._drew = self.drew_in_evaluation
        else:
            self._states[self._current] = read()
        write(self._states["order" if stream == "evaluation" else stream])
        if stream == "evaluation":
            seed(int(torch.randint(2**62, (2,))[1]) + self.now)
            self._marked = read()
        self._current = stream

    def state(self) -> dict[str, Any]:
        """Every stream, and which one is drawn from: for ``load``."""
        return {"current": self._current, "rests": self._rests, "clock": self.now, "streams": {**self._states, self._current: read()}}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a ``state()`` of this rank."""
        streams = dict(state["streams"])
        self._current, self._rests = state["current"], state.get("rests", False)
        self._set_clock(state)
        write(streams[self._current])
        streams.pop("evaluation", None)
        self._states = streams if len(streams) > 1 else {}

    def load_common(self, state: dict[str, Any], rank: int, world_size: int) -> None:
        """Go on from a ``state()`` of any rank: the common stream stays what it was, this rank's is derived anew. A single
        rank draws everything from the common one."""
        write(state["streams"]["order"])
        self._states, self._current, self._rests = {}, "order", False
        self._set_clock(state)
        if len(state["streams"]) > 1 and world_size > 1:
            self.split(rank)
            if state.get("rests", False):
                self.rest()

    def _set_clock(self, state: dict[str, Any]) -> None:
        self._clock_before = state.get("clock", self.now) - self._clock()

    @contextmanager
    def order(self) -> Iterator[None]:
        """Draw from "order" inside the block."""
        before = self._current
        self.use("order")
        try:
            yield
        finally:
            self.use(before)


def read() -> dict[str, Any]:
    """The state of every generator of this process."""
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    if "numpy" in sys.modules:
        state["numpy"] = sys.modules["numpy"].random.get_state()
    return state


def write(state: dict[str, Any]) -> None:
    """Set the generators to a state that ``read`` returned."""
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])
    if "numpy" in state and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(state["numpy"])


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(kind in other and _equal(state, other[kind]) for kind, state in one.items())


def _equal(one: Any, other: Any) -> bool:
    """torch's state is a tensor, Python's a tuple of numbers, NumPy's a tuple with an array."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool((one == other) if not hasattr(one, "tobytes") else one.tobytes() == other.tobytes())


def seed(number: int) -> None:
    """Seed the generators of this process."""
    torch.manual_seed(number)
    random.seed(number)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(number % 2**32)
