"""``ReduceLROnPlateau.step``, whose metric decides the learning rate."""

from __future__ import annotations

from collections.abc import Callable

from torch.optim.lr_scheduler import ReduceLROnPlateau

from torchbus._seams.ears import Ears, emits


@emits("ReduceLROnPlateau.step", "scheduler_metric")
def plateau_step(ears: Ears) -> Callable[[], None]:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def step(self: ReduceLROnPlateau, metrics: object, *args: object, **kwargs: object) -> None:
            replaced = ears.hook.scheduler_metric(metric=metrics)
            original(self, metrics if replaced is None else replaced, *args, **kwargs)

        return step

    return ears.replace(ReduceLROnPlateau, "step", make)
