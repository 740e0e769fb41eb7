"""The plugin: its options and its verb."""

from __future__ import annotations

import math
import weakref
from typing import Literal, TypedDict

import torch
from torch.utils.data import DataLoader
from torchbus.plugin import UsageError, expect, hookimpl, needs

MODES = ("min", "max")


class State(TypedDict):
    """The state for checkpoints."""

    best: float
    waited: int
    should_stop: bool


@needs("monitor", "patience", "mode", "min_delta")
class EarlyStop:
    """Ends the loop when a value given to ``s.log`` has not improved for a while.

    Args:
        monitor: the name of the value. All ranks log it. The value that is written decides: its
            mean over ranks, and with ``on_epoch`` over the epoch. So all ranks stop together.
        patience: how many values in a row without an improvement end the loop.
        mode: whether smaller ("min") or larger ("max") is better.
        min_delta: by how much a value must improve to count. NaN never counts.

    Then ``s.should_stop`` is True, ``s.epochs`` ends, and loaders that have fed a backward give no
    more batches. So a loop over ``range`` runs through its other epochs without training.
    Evaluation still works.
    """

    owns = ("early stopping",)
    verbs = ("should_stop",)

    def __init__(
        self,
        monitor: str | None = None,
        *,
        patience: int = 3,
        mode: Literal["min", "max"] = "min",
        min_delta: float = 0.0,
    ) -> None:
        expect("early_stop", monitor, (str, type(None)), "the name of a value given to s.log")
        expect("patience", patience, int, "a number of values")
        expect("min_delta", min_delta, (int, float), "a number")
        if patience < 1:
            raise UsageError(
                f"patience={patience}: at least one value must be worse before the loop ends"
            )
        if not min_delta >= 0:
            raise UsageError(f"min_delta={min_delta}: it must be 0 or more")
        if mode not in MODES:
            raise UsageError(f"early_stop_mode={mode!r} is unknown: use 'min' or 'max'")
        self._monitor = monitor
        self.companions = ("log",) if monitor is not None else ()
        self._patience = patience
        self._sign = 1.0 if mode == "min" else -1.0
        self._min_delta = min_delta
        self._best = math.inf
        self._waited = 0
        self._asked: weakref.WeakSet[DataLoader[object]] = weakref.WeakSet()
        self._trained: weakref.WeakSet[DataLoader[object]] = weakref.WeakSet()
        self.should_stop: bool = False

    @hookimpl(optionalhook=True)
    def monitored_name(self) -> str | None:
        return self._monitor

    @hookimpl(optionalhook=True)
    def monitored_value(self, name: str, value: float) -> None:
        if name == self._monitor and not self.should_stop:
            self._judge(value)

    def _judge(self, value: float) -> None:
        if self._sign * value < self._best - self._min_delta:
            self._best, self._waited = self._sign * value, 0
        else:
            self._waited += 1
        self.should_stop = self._waited >= self._patience

    # The end -------------------------------------------------------------------------------------

    @hookimpl
    def batch_wanted(self, loader: DataLoader[object]) -> None:
        if torch.is_grad_enabled():
            self._asked.add(loader)

    @hookimpl
    def loader_end(self, loader: DataLoader[object]) -> None:
        """Forget the loader: an evaluation that ends before the backward has not fed it."""
        self._asked.discard(loader)

    @hookimpl
    def after_backward(self) -> None:
        self._trained |= self._asked
        self._asked.clear()

    @hookimpl
    def skip_pass(self, loader: DataLoader[object]) -> bool | None:
        return True if self.should_stop and loader in self._trained else None

    @hookimpl(optionalhook=True)
    def end_epochs(self) -> bool | None:
        return self.should_stop or None

    # State ---------------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """Return the state for checkpoints."""
        return {"best": self._best, "waited": self._waited, "should_stop": self.should_stop}

    def load_state_dict(self, state: State) -> None:
        self._best, self._waited = state["best"], state["waited"]
        self.should_stop = state["should_stop"]

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]] | None:
        if self._monitor is None:
            return None
        best = f", best {self._sign * self._best:g}" if math.isfinite(self._best) else ""
        return {
            "early stop": [
                f"when {self._monitor} is no better {self._patience} times in a row{best}"
            ]
        }


@needs("early_stop", "patience", "early_stop_mode", "min_delta", verbs=("should_stop",))
def from_options(
    early_stop: str | None = None,
    patience: int = 3,
    early_stop_mode: Literal["min", "max"] = "min",
    min_delta: float = 0.0,
) -> EarlyStop:
    """``session(early_stop="val_loss", patience=3)``.

    Args:
        early_stop: the value given to ``s.log`` to monitor.
        patience: how many times in a row the value may be no better.
        early_stop_mode: whether smaller ("min") or larger ("max") is better.
        min_delta: how much better a value must be to count.
    """
    return EarlyStop(early_stop, patience=patience, mode=early_stop_mode, min_delta=min_delta)
