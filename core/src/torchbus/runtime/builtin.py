"""The plugins that every session has: seeds, ``optimizer_ready``, and ``verbose=True``."""

from __future__ import annotations

import random
import sys
import weakref
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch.optim import Optimizer

from torchbus.bus.base import hookimpl
from torchbus.runtime.explain import explain

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from torchbus.runtime.context import Context


def first(session: Context) -> list[object]:
    """Return the plugins that come before those of other packages."""
    new = NewOptimizers(session)
    session.bus.once_listened("optimizer_ready", lambda: session.bus.register(new))
    seed = session.options["seed"]
    return [Seeds(seed)] if isinstance(seed, int) else []


def last(session: Context) -> list[object]:
    """Return the plugins that come after those of other packages."""
    return [ExplainFirstEpoch(session)] if session.options["verbose"] else []


class Seeds:
    """Seeds torch on all devices, ``random`` and NumPy, the same on all ranks.

    So the block draws what one process draws after ``torch.manual_seed(seed)``,
    ``random.seed(seed)`` and ``numpy.random.seed(seed)``. Later draws come from the session's
    streams, one per rank in training. Workers of loaders derive theirs from the common stream.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    @hookimpl(tryfirst=True)
    def session_start(self, session: Context) -> None:
        if find_spec("numpy") is not None:
            import numpy  # noqa: F401  (a loop that imports it later draws from it, too)
        seed(self._seed)

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]]:
        return {"seed": [f"{self._seed}: torch on all devices, random and NumPy, on all ranks"]}


def seed(number: int) -> None:
    """Seed the generators of this process."""
    torch.manual_seed(number)
    random.seed(number)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(number % 2**32)


class ExplainFirstEpoch:
    """Prints ``s.explain()`` when the first epoch ends, evaluation included.

    The epoch ends when a loader that fed it is iterated again, or another one is exhausted, or at
    the latest when the session ends.
    """

    hears_trials = False

    def __init__(self, session: Context) -> None:
        self._session = session
        self._trained = False
        self._printed = False
        self._exhausted: weakref.ref[DataLoader[object]] | None = None

    @hookimpl
    def after_backward(self) -> None:
        self._trained = True

    @hookimpl
    def loader_start(self, loader: DataLoader[object]) -> None:
        if self._exhausted is not None and self._exhausted() is loader:
            self._print()

    @hookimpl
    def loader_end(self, loader: DataLoader[object]) -> None:
        if self._exhausted is not None:
            self._print()
        elif self._trained:
            self._exhausted = weakref.ref(loader)

    @hookimpl
    def session_end(self, error: BaseException | None) -> None:
        if error is None:
            self._print()

    def _print(self) -> None:
        if not self._printed and self._session.is_main:
            print(explain(self._session))
        self._printed = True


class NewOptimizers:
    """Emits ``optimizer_ready`` for each new optimizer, before the loop's next action."""

    def __init__(self, session: Context) -> None:
        self._bus = session.bus
        self._known: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._waiting: list[weakref.ref[Optimizer]] = []
        self._first_use = FirstUse(self)

    @hookimpl(trylast=True)
    def parameters_added(self, optimizer: Optimizer | None) -> None:
        if optimizer is None or optimizer in self._known:
            return
        self._known.add(optimizer)
        self._waiting.append(weakref.ref(optimizer))
        if len(self._waiting) == 1:
            self._bus.register(self._first_use)

    def emit(self) -> None:
        """Send the event for all waiting optimizers."""
        self._bus.unregister(self._first_use)
        waiting, self._waiting = self._waiting, []
        for optimizer in (reference() for reference in waiting):
            if optimizer is not None:
                self._bus.hook.optimizer_ready(optimizer=optimizer)


class FirstUse:
    """Detects the loop's first action after making optimizers, before other plugins get its event.

    Registered only while an optimizer waits, so that a step costs nothing.
    """

    def __init__(self, new: NewOptimizers) -> None:
        self._optimizers = new

    @hookimpl(tryfirst=True)
    def loader_start(self) -> None:
        self._optimizers.emit()

    before_zero_grad = before_backward = step_called = loader_start

    @hookimpl(tryfirst=True)
    def model_found(self, calling: bool) -> None:
        if calling:
            self._optimizers.emit()
