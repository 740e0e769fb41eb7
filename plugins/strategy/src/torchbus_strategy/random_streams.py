"""Random numbers: a common stream for the order of data and for evaluation, and one per rank."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torchbus.runtime.builtin import seed as seed

from torchbus_device import accelerators
from torchbus_strategy.collectives import broadcast_object
from torchbus_strategy.script_generators import STRIDE, ScriptGenerators, refuse_outside

if TYPE_CHECKING:
    from torchbus.plugin import Context


class RandomStreams:
    """Switches the process's generators (torch's of the CPU and the accelerator, ``random``, NumPy
    if imported) between streams.

    Until ``split`` there is one stream, that of the process itself. From then on there are three:

    - "order" is equal on all ranks. The order of data is drawn from it.
    - "own" is this rank's stream, for training.
    - "evaluation" begins at the state of "order", and does not change "order" until the next pass
      or ``pause``. Inside a pass, it is derived from that state and from ``clock``. So all ranks
      evaluate with the same numbers, and an evaluation that only some ranks run can't upset the
      order of data.

    While no trained model is alive (``pause``), and between two passes over divided data
    (``pass_ends``), the process draws from "order" instead of "own". So splits, models of the next
    run, and what a data set shuffles between epochs are the same on all ranks. ``clock`` returns a
    number that is equal on all ranks at the same place of the loop. A run that resumes from a
    ``state`` continues to count from its number.

    The script's generators are switched too, from their first pass on (``draw_apart``). They have
    no evaluation stream.
    """

    def __init__(self, clock: Callable[[], int] = int) -> None:
        self.before_split: Callable[[], object] = lambda: None
        """Gives all ranks the state of rank 0's generators."""
        self._states: dict[str, dict[str, object]] = {}
        self._current = "order"
        self._rests = self._is_between = False
        self._clock = clock
        self._clock_before = 0
        self._marked: dict[str, object] = {}
        self._evaluated: dict[str, dict[str, object]] = {}  # states before ("from") and after it
        self._drew = self._is_derived = self._lost = False
        self._script = ScriptGenerators()

    @property
    def current(self) -> str:
        """The name of the stream in use."""
        return self._current

    @property
    def now(self) -> int:
        """The clock, over all runs."""
        return self._clock_before + self._clock()

    @property
    def is_split(self) -> bool:
        """Whether this rank has a separate stream, and draws from it in training."""
        return bool(self._states) and not self._rests

    def mark(self) -> None:
        """Start the period that ``drew_in_evaluation`` reports on."""
        self._drew = False
        self._marked = read() if self._current == "evaluation" else {}

    @property
    def drew_in_evaluation(self) -> bool:
        """Whether anything was drawn from "evaluation" since ``mark``.

        The states of the other streams do not show such draws.
        """
        return self._drew or self.draws_in_evaluation

    @property
    def draws_in_evaluation(self) -> bool:
        """Whether "evaluation" is in use, and was drawn from since it came into use, or since
        ``mark``.
        """
        return self._current == "evaluation" and not _same(read(), self._marked)

    @property
    def loses_draws(self) -> bool:
        """Whether "evaluation" has given numbers that "order" will give again, or never."""
        return self._lost or (self._is_derived and self.draws_in_evaluation)

    def split(self, rank: int) -> None:
        """Give this rank a separate stream, derived from the common one, or go back to it after
        ``pause``. All ranks call it.

        The common stream continues from the state of rank 0. An earlier forward may have drawn more
        on some ranks, as dropout does on a longer batch.
        """
        if self._current == "order":
            self.before_split()
        if self._rests:
            self._rests = False
            return self.use("own")
        self._derive(rank)

    def _derive(self, rank: int) -> None:
        self._states["order"] = read()
        seed(int(torch.randint(2**62, (1,))) + rank)
        self._current = "own"

    def pause(self) -> None:
        """Draw from "order" until ``split`` is called again, because nothing is trained now.

        Does nothing before the first ``split``.
        """
        self._script.use(False)
        if self._states:
            self._rests = True
            self._use_order()

    def resume(self) -> None:
        """Draw from "own" again, because the training from before ``pause`` continues."""
        if self._rests:
            self._rests = False
            if self._current == "order":
                self.use("own")

    def draw_apart(self, generators: Iterable[object], rank: int) -> None:
        """Let ranks draw different numbers from ``generators`` until ``pass_ends``.

        It is called when a pass over divided data has begun.
        """
        self._script.begin(generators, self.now + STRIDE * rank)
        self._script.use(self._current != "evaluation")

    def pass_ends(self) -> None:
        """Draw from "order" instead of "own" until ``pass_begins``, in training.

        Before the first ``split``, this affects only the script's generators.
        """
        self._script.end()
        if self._states:
            before, self._is_between = self._current, True
            self.use("order")
            self.use(before)

    def pass_begins(self) -> None:
        """Begin a pass over divided data. All ranks call it.

        The common stream continues from the state of rank 0, because the script may have drawn from
        it between two passes on that rank alone.
        """
        if self._is_between:
            self._use_order()
            self.before_split()
            self._is_between = False

    def _use_order(self) -> None:
        """Draw from "order", and skip the numbers that the latest evaluation has drawn from it.

        It skips none if "order" was used since that evaluation began.
        """
        self.use("order")
        if self._evaluated and _same(read(), self._evaluated["from"]):
            write(self._evaluated["to"])
        self._evaluated, self._lost = {}, False

    def goes_on(self) -> None:
        """Draw from "own" again, because training continues without another pass.

        A backward in an evaluation between two passes does not train.
        """
        if self._current == "own" and self._script.apart:
            return
        if self._current == "evaluation" and self._is_between:
            return
        self._script.go_on()
        self._script.use(self._current != "evaluation")
        if self._is_between:
            self._is_between = False
            if self._current == "order":
                self.use("own")

    def forget(self) -> None:
        """Leave the generators as they are from now on."""
        self._states.clear()
        self._rests = self._is_between = False
        self._script.forget()

    def use(self, stream: str) -> None:
        """Draw from "order", "own" or "evaluation".

        Before ``split``, this affects only the script's generators.
        """
        if stream == "own" == self._current and self._script.apart:
            return
        trains = stream == "own"
        if trains and (self._rests or self._is_between):
            stream = "order"
        self._script.use(stream == "own")
        if not self._states or stream == self._current:
            return
        if self._current == "evaluation":
            self._drew = self.drew_in_evaluation
            self._leave_evaluation(trains)
        else:
            self._states[self._current] = read()
        write(self._states["order" if stream == "evaluation" else stream])
        if stream == "evaluation":
            self._is_derived = not (self._rests or self._is_between)
            if self._is_derived:
                seed(int(torch.randint(2**62, (2,))[1]) + self.now)
            self._marked = read()
        self._current = stream

    def _leave_evaluation(self, trains: bool) -> None:
        """Note what was drawn. Another loader of the same evaluation continues after it."""
        drew, is_common = self.draws_in_evaluation, not self._is_derived
        if drew and is_common and not trains and _same(self._states["order"], self._marked):
            self._states["order"] = read()
            return
        self._lost = not trains and (self._lost or drew)
        if drew and is_common:
            self._evaluated = {"from": self._marked, "to": read()}

    def state(self) -> dict[str, object]:
        """Return every stream and the name of the one in use, for ``load``."""
        return {
            "current": self._current,
            "rests": self._rests,
            "between": self._is_between,
            "clock": self.now,
            "evaluated": self._evaluated,
            "streams": {**self._states, self._current: read()},
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a ``state()`` of this rank."""
        streams = dict(state["streams"])
        self._current, self._rests = state["current"], state.get("rests") is True
        self._is_between = state.get("between") is True
        self._is_derived = not (self._rests or self._is_between)
        self._evaluated = _evaluated(state)
        self._set_clock(state)
        write(streams[self._current])
        streams.pop("evaluation", None)
        self._states = streams if len(streams) > 1 else {}
        if self._states:
            self._script.use(self._current == "own")

    def load_common(self, state: dict[str, Any], rank: int, world_size: int) -> None:
        """Continue from a ``state()`` of any rank.

        The common stream continues, and this rank's stream is derived again. A single rank draws
        everything from the common stream.
        """
        self._evaluated = _evaluated(state)
        write(state["streams"]["order"])
        self._states, self._current, self._rests = {}, "order", False
        self._is_between = False
        self._set_clock(state)
        if len(state["streams"]) > 1 and world_size > 1:
            self._derive(rank)
            self._script.derive_again(self.now + STRIDE * rank)
            if state.get("rests") is True:
                self.pause()
            if state.get("between") is True:
                self.pass_ends()

    def _set_clock(self, state: dict[str, Any]) -> None:
        self._clock_before = state.get("clock", self.now) - self._clock()

    @contextmanager
    def order(self) -> Iterator[None]:
        """Draw from "order" inside the block."""
        before = self._current
        with self.script_alike():
            self.use("order")
            try:
                yield
            finally:
                self.use(before)

    @contextmanager
    def script_alike(self) -> Iterator[None]:
        """Draw the same numbers on all ranks from the script's generators inside the block."""
        apart = self._script.apart
        self._script.use(False)
        try:
            yield
        finally:
            self._script.use(apart)


def of_session(session: Context) -> RandomStreams:
    """Return the streams of a session, whose clock is the number of synchronised backwards."""
    return RandomStreams(lambda: session.job.backwards if session.job is not None else 0)


def read() -> dict[str, object]:
    """Return the state of every generator of this process."""
    state: dict[str, object] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    kind = accelerators.built_in()
    drawn = accelerators.random_state(kind) if kind else None
    if kind and drawn is not None:
        state[kind] = drawn
    if "numpy" in sys.modules:
        state["numpy"] = sys.modules["numpy"].random.get_state()
    return state


def write(state: dict[str, Any]) -> None:
    """Set the generators to a state that ``read`` returned. Raises an error for anything else."""
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    kind = accelerators.built_in()
    if kind and kind in state:
        accelerators.set_random_state(kind, state[kind])
    if "numpy" in state and "numpy" in sys.modules:
        refuse_outside(state["numpy"])
        sys.modules["numpy"].random.set_state(state["numpy"])


def _evaluated(state: dict[str, Any]) -> dict[str, dict[str, object]]:
    """Return the states before and after an evaluation, if generators accept them."""
    before = read()
    try:
        found = {one: state["evaluated"][one] for one in ("from", "to")}
        for one in found.values():
            write(one)
    except Exception:
        return {}
    finally:
        write(before)
    return found


def share() -> None:
    """Give all ranks the state of rank 0's generators. All ranks call it."""
    write(broadcast_object(read()))


def _same(one: dict[str, object], other: dict[str, object]) -> bool:
    return all(kind in other and _equal(state, other[kind]) for kind, state in one.items())


def _equal(one: object, other: Any) -> bool:
    """Compare two states: torch's is a tensor, Python's a tuple of numbers, NumPy's a tuple with an
    array.
    """
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool((one == other) if not hasattr(one, "tobytes") else one.tobytes() == other.tobytes())
