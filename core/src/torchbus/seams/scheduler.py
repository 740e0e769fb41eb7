"""``ReduceLROnPlateau.step``, whose metric decides the learning rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from torchbus.bus import Bus
from torchbus.seams._patch import replace

PLACE = "ReduceLROnPlateau.step"
EVENTS = ("scheduler_metric",)


def install(bus: Bus) -> Callable[[], None]:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def step(self: ReduceLROnPlateau, metrics: Any, *args: Any, **kwargs: Any) -> None:
            replaced = bus.hook.scheduler_metric(metric=metrics)
            original(self, metrics if replaced is None else replaced, *args, **kwargs)

        return step

    return replace(ReduceLROnPlateau, "step", make)
