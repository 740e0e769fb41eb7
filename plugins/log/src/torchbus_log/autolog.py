"""The values that a session logs automatically: loss, learning rates, times."""

from __future__ import annotations

import time
import weakref
from collections.abc import Collection, Iterator
from numbers import Real

from torch import Tensor
from torch.optim import Optimizer
from torchbus.plugin import BackwardCall, hookimpl
from torchbus.runtime.steps import StepCounter

from torchbus_log.exchange import LoggedValue
from torchbus_log.passes import OpenPasses
from torchbus_log.totals import Value
from torchbus_strategy.loss.intermediate_values import unscaled


class Autolog:
    """Logs loss, learning rates, gradient norm, samples per second and seconds per step.

    The loss is the loss of the last backward before each optimizer's step, without factors by which
    the loop has multiplied it (those of a scaler, say). The gradient norm is logged only if another
    plugin or the loop computes it. Samples are counted over all ranks. If the loop logs a value
    under one of these names, only that value is logged.

    Nothing is reduced here: with ``strategy="ddp"``, backward makes the loss the mean over ranks.
    """

    hears_trials = False

    def __init__(self, passes: OpenPasses, steps: StepCounter) -> None:
        self._passes, self._counter = passes, steps
        self._loss: Tensor | None = None
        self._unscaled: Tensor | None = None
        self._losses: dict[str, tuple[int, Tensor]] = {}
        self._norm: tuple[int, Tensor] | None = None
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._used: weakref.WeakKeyDictionary[Optimizer, list[object]] = weakref.WeakKeyDictionary()
        self._since: tuple[float, int, float] | None = None
        self._paused = 0.0

    @hookimpl
    def before_backward(self, call: BackwardCall) -> None:
        self._unscaled = None if call.loss is None else unscaled(call.loss)

    @hookimpl
    def after_backward(self, call: BackwardCall) -> None:
        loss, self._unscaled = self._unscaled, None
        self._loss = loss.detach() if isinstance(loss, Tensor) and loss.numel() == 1 else None
        if self._since is None and self._passes.current is not self._passes.outside:
            self._since = (
                max(self._passes.current.began, self._paused),
                self._steps,
                self._passes.samples_trained_on,
            )

    @hookimpl
    def gradient_norm(self, norm: Tensor) -> None:
        if isinstance(norm, Tensor) and norm.numel() == 1:
            self._norm = (self._steps + 1, norm.detach())

    @hookimpl(trylast=True)
    def before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Record the rates of this step, because a warm-up restores the script's rates after it."""
        self._used[optimizer] = [group.get("lr") for group in optimizer.param_groups]

    @property
    def _steps(self) -> int:
        return self._counter.count

    def stepped(self, optimizer: Optimizer) -> None:
        """Called after an optimizer's step."""
        steps = self._steps
        if self._since is None:  # in a loop without a loader, only the end of a step is known
            self._since = (time.perf_counter(), steps, self._passes.samples_trained_on)
        place = next(
            (place for place, known in enumerate(self._optimizers) if known() is optimizer), None
        )
        if place is None:
            place = len(self._optimizers)
            self._optimizers.append(weakref.ref(optimizer))
        if self._loss is not None:
            self._losses[_label("loss", place)] = (steps, self._loss)
            self._loss = None

    def pause(self) -> None:
        """Called after a pass over the training data. Time until the next batch is not counted."""
        self._since, self._paused = None, time.perf_counter()

    def records(self, but: Collection[str]) -> list[LoggedValue]:
        """Return the values of this log point, except those with a name in ``but``."""
        found = [(name, steps, value) for name, steps, value in self._all() if name not in but]
        self._losses.clear()
        self._norm = None
        return [
            LoggedValue(
                name, steps, self._passes.epoch, (_scalar(value),), 1.0, 1.0, "sum", False, False
            )
            for name, steps, value in found
        ]

    def _all(self) -> Iterator[tuple[str, int, Value]]:
        yield from ((name, steps, loss) for name, (steps, loss) in self._losses.items())
        if not self._losses:
            return  # no step since the last log point
        for place, known in enumerate(self._optimizers):
            optimizer = known()
            rates = self._used.get(optimizer, []) if optimizer is not None else []
            names = _names(optimizer) if optimizer is not None else []
            for name, rate in zip(names, rates, strict=False):
                label = _label("lr", place) + (f"/{name}" if len(rates) > 1 else "")
                # an optimizer may have no rate, or compute it
                if isinstance(rate, Real) or (isinstance(rate, Tensor) and rate.numel() == 1):
                    yield label, self._steps, rate if isinstance(rate, Tensor) else float(rate)
        if self._norm is not None:
            yield "grad_norm", *self._norm
        yield from self._rates()

    def _rates(self) -> Iterator[tuple[str, int, float]]:
        now = (time.perf_counter(), self._steps, self._passes.samples_trained_on)
        before, self._since = self._since, now
        if before is None or now[1] == before[1]:
            return
        seconds, steps, samples = (
            later - earlier for later, earlier in zip(now, before, strict=True)
        )
        yield "step_time_s", self._steps, seconds / steps
        if samples:
            yield "samples_per_s", self._steps, samples / seconds


def _names(optimizer: Optimizer) -> list[str]:
    """Return the names of an optimizer's groups, or ``group0`` ... if these are not distinct."""
    named = [group.get("name") for group in optimizer.param_groups]
    clear = len(set(map(str, named))) == len(named)
    return [
        name if isinstance(name, str) and clear else f"group{index}"
        for index, name in enumerate(named)
    ]


def _label(name: str, place: int) -> str:
    """Return the name with the number of the optimizer. The first optimizer has no number."""
    return name if place == 0 else f"{name}_{place + 1}"


def _scalar(value: Value) -> Value:
    return value.detach().reshape(()) if isinstance(value, Tensor) else value
