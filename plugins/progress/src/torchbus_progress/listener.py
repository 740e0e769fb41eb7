"""Rank 0's listener, which decides when to draw."""

from __future__ import annotations

import contextlib
import functools
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch.utils.data import DataLoader
from torchbus.plugin import (
    BackwardCall,
    Context,
    LoaderIterator,
    UsageError,
    expect,
    hookimpl,
    warn,
)
from torchbus.runtime.steps import StepCounter

from torchbus_device import accelerators
from torchbus_progress.outputs import Output, choose
from torchbus_progress.passes import Rate, ShownPasses
from torchbus_progress.words import ProgressState
from torchbus_strategy.loss.intermediate_values import unscaled


class Progress:
    """A progress bar on rank 0: the pass, its batches, speed, time left, loss and metrics.

    It shows the metrics of ``s.log(..., prog_bar=True)``. In a terminal it is a line at the bottom,
    in a notebook a separate output. Elsewhere it is a line on stderr now and then.

    Args:
        progress: show a progress bar. False shows nothing.
        every_s: seconds between two lines, if there is no terminal.

    An error in the bar ends the bar with one warning, and never the training.

    Raises:
        UsageError: an option has another type or value.
    """

    owns = ("progress bar",)
    tried_with = ({"progress": True},)

    def __init__(self, progress: bool = True, *, every_s: float = 30.0) -> None:
        expect("progress", progress, bool, "True or False")
        expect("every_s", every_s, (int, float), "a number of seconds")
        if not every_s > 0:
            raise UsageError(f"every_s={every_s}: it must be positive")
        # it brings the metrics of `s.log(..., prog_bar=True)`
        self.companions = ("log",) if progress else ()
        self._active = progress
        self._every_s = float(every_s)
        self._place = ""

    @hookimpl
    def session_start(self, session: Context) -> None:
        if self._active and session.is_main:
            output = choose(self._every_s, shared=session.options["print_all_ranks"])
            session.on_close.callback(_close, output)
            session.bus.register(Listener(output, session.steps.follow()), "progress.listener")
            self._place = output.place

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]] | None:
        return {"progress": [self._place]} if self._place else None


def _close(output: Output) -> None:
    with contextlib.suppress(OSError):
        output.close()


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


def _no_loss() -> None:
    return None


class Listener:
    """Draws at most as often as the output wants. Drawing takes at most 1 % of the time."""

    hears_trials = False

    def __init__(self, output: Output, steps: StepCounter) -> None:
        self._output = output
        self._passes = ShownPasses()
        self._loss = Loss()
        self._unscaled: torch.Tensor | None = None
        self._epochs_loss = EpochMeanLoss()
        self._last: Callable[[], torch.Tensor | None] = _no_loss
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
        current = self._passes.record(iterator)
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
                self._epochs_loss = EpochMeanLoss()
            current.trained = True
            self._epochs_loss.add(loss)
        self._last = _no_loss if loss is None else weakref.ref(loss)
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
                ProgressState(
                    label, self._steps.count, None, seconds, None, self._epochs_metrics(), "steps"
                )
            )

    def state_dict(self) -> dict[str, int]:
        return {"epochs": self._passes.begun}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._passes.go_on(state["epochs"])

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

    def _snapshot(self) -> ProgressState:
        if self._passes.current is not None:
            return self._passes.current.snapshot(self._metrics())
        return ProgressState(
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
        pause_s_ = min((ended_s - begun_s) / LARGEST_PART, LONGEST_PAUSE_S)
        self._next_s = ended_s + max(self._output.pause_s, pause_s_)


MAX_PENDING = 64


class EpochMeanLoss:
    """The mean over the backwards of an epoch. Only ``value`` waits for a GPU."""

    def __init__(self) -> None:
        self._count = 0
        self._sum = 0.0
        self._pending: list[torch.Tensor] = []
        self._sums: list[torch.Tensor] = []

    def add(self, loss: torch.Tensor | None) -> None:
        """Add the loss of a backward. Every step calls it."""
        if loss is None or loss.numel() != 1 or loss.is_complex():
            return
        if loss.device.type == "cpu":
            self._sum += loss.item()
        elif accelerators.is_capturing(loss.device):
            return
        else:
            self._pending.append(loss.detach().reshape(()).float())
            if len(self._pending) == MAX_PENDING:
                self._sum_pending()
        self._count += 1

    @property
    def value(self) -> float | None:
        self._sum_pending()
        self._sum += sum(float(one) for one in self._sums)
        self._sums.clear()
        return self._sum / self._count if self._count else None

    def _sum_pending(self) -> None:
        if self._pending:
            self._sums.append(torch.stack(self._pending).sum())
            self._pending.clear()


class Loss:
    """The latest loss. The listener calls ``show`` a few times per second.

    On a GPU, ``show`` begins a copy, whose value is known at a later call.
    """

    def __init__(self) -> None:
        self.value: float | None = None
        self._copy: torch.Tensor | None = None
        self._copied: accelerators.Event | None = None

    def show(self, loss: torch.Tensor | None) -> None:
        if loss is None or loss.numel() != 1 or loss.is_complex():
            return
        if loss.device.type != "cpu":
            self._show_later(loss.detach())
        else:
            self.value = float(loss.detach())

    def _show_later(self, loss: torch.Tensor) -> None:
        if accelerators.is_capturing(loss.device):
            return
        if self._copied is None or self._copy is None:
            self._copy = torch.empty(1, dtype=torch.float32, pin_memory=True)
            self._copied = accelerators.event(loss.device)
        elif not self._copied.query():
            return
        else:
            self.value = float(self._copy)
        self._copy.copy_(loss.reshape(1).float(), non_blocking=True)
        self._copied.record()
