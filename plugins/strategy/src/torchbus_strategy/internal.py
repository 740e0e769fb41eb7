"""Marks optimizers that an engine makes for its own use: no event is sent for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from torch.optim import Optimizer
from torchbus.patches.patching import replace
from torchbus.plugin import mark_internal


@contextmanager
def making_internal() -> Iterator[None]:
    """Mark each optimizer that is made in the block, before any event is sent for it.

    It is for engines that make further optimizers.
    """
    with ExitStack() as undo:
        for name in ("add_param_group", "__setstate__"):
            undo.callback(replace(Optimizer, name, _marking))
        yield


def _marking(original: Callable[..., None]) -> Callable[..., None]:
    def mark(optimizer: Optimizer, *args: object, **kwargs: object) -> None:
        if not vars(optimizer).get("param_groups"):  # its constructor runs
            mark_internal(optimizer)
        original(optimizer, *args, **kwargs)

    return mark
