"""Rank 0's listener, which decides when to draw."""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch.utils.data import DataLoader
from torchbus.plugin import BackwardCall, LoaderIterator, hookimpl, warn
from torchbus.runtime.steps import Steps

from torchbus_progress.loss import Loss, MeanLoss
from torchbus_progress.outputs import Output
from torchbus_progress.passes import Passes, Rate
from torchbus_progress.snapshot import Snapshot
from torchbus_strategy.loss.held import unscaled

LARGEST_PART, LONGEST_PAUSE_S = 0.01, 5.0
F = TypeVar("F", bound=Callable[..., object])


def guarded(listen: F) -> F:
    """Turn any error into a warning that ends the bar, and nothing else.

    After an error while writing, the bar tries again with the next event.
    """

    @functools.wraps(listen)
    def call(self: Listener, *args: Any) -> Any:
        if self.stopped:
            return None
        try:
            return listen(self, *args)
        except OSError as error:  # of the terminal or the file: a disk may have room again
            self.lost(error)
        except Exception as error:
            self.stopped = True
            warn(f"the progress bar has stopped: {error!r}. Training continues")

    return cast(F, call)


def _nothing() -> None:
    return None


class Listener:
    """Draws at most as often as the output wants. Drawing takes at most 1 % of the time."""

    hears_trials = False

    def __init__(self, output: Output, steps: Steps) -> None:
        self._output = output
        self._passes = Passes()
        self._loss = Loss()
        self._unscaled: torch.Tensor | None = None
        self._epochs_loss = MeanLoss()
        self._last: Callable[[], torch.Tensor | None] = _nothing
        self._named: dict[str, float] = {}
        self._steps = steps
        self._step_rate = Rate()
        self._started_s = time.monotonic()
        self._next_s = self._started_s + output.pause_s
        self.stopped = self._has_lost = False

    # Events --------------------------------------------------------------------------------------

    @hookimpl
    @guarded
    def loader_opened(self, loader: DataLoader[object], iterator: LoaderIterator) -> None:
        self._passes.opened(loader, iterator)

    @hookimpl
    @guarded
    def batch_ready(self, iterator: LoaderIterator) -> None:
        current = self._passes.took(iterator)
        if current is not None and not current.trained and time.monotonic() >= self._next_s:
            self._draw()

    @hookimpl
    @guarded
    def before_backward(self, call: BackwardCall) -> None:
        self._unscaled = None if call.loss is None else unscaled(call.loss)

    @hookimpl(trylast=True)
    @guarded
    def after_backward(self, call: BackwardCall) -> None:
        loss, self._unscaled = self._unscaled, None
        current = self._passes.current
        if current is not None:
            if not (current.trained or current.inner):
                self._epochs_loss = MeanLoss()
            current.trained = True
            self._epochs_loss.add(loss)
        self._last = _nothing if loss is None else weakref.ref(loss)
        if time.monotonic() >= self._next_s:
            self._loss.show(loss)
            self._draw()

    @hookimpl(optionalhook=True)
    @guarded
    def metrics_ready(self, metrics: dict[str, float], prog_bar: frozenset[str]) -> None:
        self._named |= {name: value for name, value in metrics.items() if name in prog_bar}

    @hookimpl(trylast=True)  # after the log point, which brings metrics
    @guarded
    def loader_end(self, loader: DataLoader[object]) -> None:
        ended = self._passes.ended(loader)
        if ended is not None and ended.trained and not ended.inner:
            self._output.leave(ended.snapshot(self._epochs_metrics()))

    @hookimpl
    @guarded
    def session_end(self) -> None:
        seconds = time.monotonic() - self._started_s
        epochs = self._passes.epochs
        label = f"{epochs} epoch{'s' if epochs > 1 else ''}" if epochs else "done"
        if self._steps.count:
            self._loss.show(self._last())
            self._output.end(
                Snapshot(
                    label, self._steps.count, None, seconds, None, self._epochs_metrics(), "steps"
                )
            )

    def lost(self, error: OSError) -> None:
        """A line could not be written. Warn once."""
        self._next_s = time.monotonic() + self._output.pause_s
        if not self._has_lost:
            self._has_lost = True
            warn(
                f"the progress bar could not be written: {error.strerror or error}. Training"
                " continues, and the bar will try again"
            )

    # Inside --------------------------------------------------------------------------------------

    def _metrics(self) -> dict[str, float]:
        return ({} if self._loss.value is None else {"loss": self._loss.value}) | self._named

    def _epochs_metrics(self) -> dict[str, float]:
        """Return metrics with the last epoch's mean loss. Without a loader, use the last loss."""
        mean = self._epochs_loss.value
        return self._metrics() if mean is None else {"loss": mean} | self._named

    def _snapshot(self) -> Snapshot:
        if self._passes.current is not None:
            return self._passes.current.snapshot(self._metrics())
        return Snapshot(
            "step",
            self._steps.count,
            None,
            time.monotonic() - self._started_s,
            self._step_rate.update(self._steps.count),
            self._metrics(),
        )

    def _draw(self) -> None:
        begun_s = time.monotonic()
        with torch.inference_mode(False):
            self._output.draw(self._snapshot())
        ended_s = time.monotonic()
        # if the process was suspended, drawing was not slow
        rest_s = min((ended_s - begun_s) / LARGEST_PART, LONGEST_PAUSE_S)
        self._next_s = ended_s + max(self._output.pause_s, rest_s)
