"""The events that a plugin hears, and the numbers that a logger does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchbus import events
from torchbus.events import hookimpl


class Recorder:
    """A plugin that notes the names of the events it hears, in ``names``.

    It listens to those given, by default to all but ``run_backward``, whose listener would have to do the work.
    """

    def __init__(self, *listened: str) -> None:
        self.names: list[str] = []
        for name in listened or ALL_EVENTS - {"run_backward"}:
            setattr(self, name, self._listener(name))

    def _listener(self, name: str) -> Callable[[], None]:
        def listen() -> None:
            self.names.append(name)

        return hookimpl(listen)


class RecordingLogger:
    """A logger that keeps what it is told: ``lines`` of (step, epoch, metrics, names for the progress bar), and ``values``, the
    hyperparameters of each call."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, int | None, dict[str, float], frozenset[str]]] = []
        self.values: list[dict[str, Any]] = []

    @hookimpl
    def metrics_ready(self, metrics: dict[str, float], step: int, epoch: int | None, prog_bar: frozenset[str]) -> None:
        self.lines.append((step, epoch, metrics, prog_bar))

    @hookimpl
    def hyperparameters(self, values: dict[str, Any]) -> None:
        self.values.append(values)

    def of(self, name: str) -> list[tuple[int, float]]:
        """The steps and values of one metric."""
        return [(step, metrics[name]) for step, _, metrics, _ in self.lines if name in metrics]


ALL_EVENTS = frozenset(name for name, value in vars(events).items() if hasattr(value, "torchbus_spec"))
