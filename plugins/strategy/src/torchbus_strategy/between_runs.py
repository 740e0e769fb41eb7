"""Lets all ranks draw the same random numbers between two training runs.

This holds while no trained model is alive, or no optimizer of one.
"""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torchbus import objects
from torchbus.plugin import hookimpl, warn

if TYPE_CHECKING:
    from torchbus.plugin import Context

EVALUATED = (
    "random numbers for a new model (its weights, a split) were drawn while an earlier trained"
    " model still existed, in eval mode: they are the same on all ranks, but not those of one"
    " process. For the same numbers, delete the old model first: del model, or train each model in"
    " a function"
)
COLLECTED = -1  # no id
Known: TypeAlias = dict[int, weakref.ref[Any]]


class SharedRngBetweenRuns:
    """Tracks trained models and their optimizers, to detect the end of the last one.

    Objects in a reference cycle count as alive forever, because the garbage collector would free
    them at another place of the loop on every rank. So do models that fsdp has divided, and
    optimizers with a scheduler.
    """

    def __init__(self, session: Context) -> None:
        self._session = session
        self._trained: Known = {}
        self._optimizers: Known = {}
        self._collecting = self._has_said = self._drew = False

    @hookimpl
    def session_start(self, session: Context) -> None:
        gc.callbacks.append(self._collector_runs)
        session.on_close.callback(gc.callbacks.remove, self._collector_runs)

    @hookimpl
    def parameters_added(self, optimizer: Optimizer | None, parameters: list[Tensor]) -> None:
        if optimizer is None or not self._session.captures(optimizer):
            return
        models = objects.models_of(parameters)
        if any(id(model) not in self._trained for model in models):
            self._begin_again()
        elif not self._optimizers:
            self._session.random.resume()
        for model in models:
            self._trained.setdefault(id(model), weakref.ref(model, self._ended))
        self._optimizers.setdefault(id(optimizer), weakref.ref(optimizer, self._optimizer_ended))

    def _begin_again(self) -> None:
        """Let ranks draw a new model's values from the common stream, until a backward.

        A model may draw its values as late as in its first forward.
        """
        random = self._session.random
        if (self._drew or (self._trained and random.loses_draws)) and not self._has_said:
            self._has_said = True
            if self._session.is_main:
                warn(EVALUATED)
        self._drew = False
        random.pause()

    def _ended(self, reference: weakref.ref[Module]) -> None:
        self._trained = self._left(self._trained, reference)
        if not self._trained and self._session.is_inside:
            self._drew = self._session.random.loses_draws
            self._session.random.pause()

    def _optimizer_ended(self, reference: weakref.ref[Optimizer]) -> None:
        """Pause at the end of the last optimizer, but not during an evaluation.

        An evaluation still uses the model, so the end of the model counts.
        """
        self._optimizers = self._left(self._optimizers, reference)
        has_ended = not self._optimizers and self._session.is_inside
        if has_ended and self._session.random.current == "own":
            self._session.random.pause()

    def _left(self, known: Known, reference: weakref.ref[Any]) -> Known:
        """Return what counts as alive. Another object may get the id of a collected one."""
        left = {key: one for key, one in known.items() if one is not reference}
        return left | {COLLECTED: reference} if self._collecting else left

    def _collector_runs(self, phase: str, info: dict[str, Any]) -> None:
        self._collecting = phase == "start"


def always(session: Context) -> list[object]:
    """Return what watches the end of a training run, for a session of several ranks."""
    return [SharedRngBetweenRuns(session)] if session.world_size > 1 else []
