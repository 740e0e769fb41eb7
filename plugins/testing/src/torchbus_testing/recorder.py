"""Records the events of a plugin, the numbers of a logger, and the requests to the shared store."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist
from torchbus import events
from torchbus.bus.base import hookimpl

from torchbus_launch.store import SealedStore
from torchbus_log.trackers.values import Image, Values


class Recorder:
    """A plugin that records the names of the events it receives, in ``names``.

    It listens to the given events, or by default to all except ``run_backward``, whose listener
    would have to run the backward.
    """

    def __init__(self, *listened: str) -> None:
        self.names: list[str] = []
        for name in listened or ALL_EVENTS - {"run_backward"}:
            setattr(self, name, self._listener(name))

    def _listener(self, name: str) -> Callable[[], None]:
        def listen() -> None:
            self.names.append(name)

        return hookimpl(optionalhook=name not in ALL_EVENTS)(listen)


class RecordingLogger:
    """A logger that stores everything it receives.

    ``lines`` has tuples of step, epoch, metrics, and names for the progress bar. ``values`` has the
    hyperparameters of each call. ``pictures`` and ``histograms`` have tuples of step, name, and the
    object that ``torchbus_log`` sends.
    """

    def __init__(self) -> None:
        self.lines: list[tuple[int, int | None, dict[str, float], frozenset[str]]] = []
        self.values: list[dict[str, object]] = []
        self.pictures: list[tuple[int, str, Image]] = []
        self.histograms: list[tuple[int, str, Values]] = []

    @hookimpl(optionalhook=True)
    def metrics_ready(
        self, metrics: dict[str, float], step: int, epoch: int | None, prog_bar: frozenset[str]
    ) -> None:
        self.lines.append((step, epoch, metrics, prog_bar))

    @hookimpl(optionalhook=True)
    def hyperparameters(self, values: dict[str, object]) -> None:
        self.values.append(values)

    @hookimpl(optionalhook=True)
    def image_ready(self, name: str, image: Image, step: int) -> None:
        self.pictures.append((step, name, image))

    @hookimpl(optionalhook=True)
    def histogram_ready(self, name: str, values: Values, step: int) -> None:
        self.histograms.append((step, name, values))

    def of(self, name: str) -> list[tuple[int, float]]:
        """Return the steps and values of one metric."""
        return [(step, metrics[name]) for step, _, metrics, _ in self.lines if name in metrics]


ALL_EVENTS = frozenset(
    name for name, value in vars(events).items() if hasattr(value, "torchbus_spec")
)


class CountedStore(SealedStore):
    """A store of a job that counts its requests.

    ``requests`` is the number of requests so far.
    """

    requests = 0

    @property
    def raw(self) -> dist.Store:
        """torch's own store; each use counts as a request."""
        self.requests += 1
        return super().raw
