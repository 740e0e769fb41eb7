"""Modules and optimizers that a plugin has made for its own use: no event is sent for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from torch.nn import Module
from torch.optim import Optimizer

from torchbus._seams.patch import replace

MARK = "torchbus_internal"
Thing = TypeVar("Thing", Module, Optimizer)


def mark_internal(thing: Thing) -> Thing:
    """Mark a module or an optimizer as a plugin's own, and return it.

    It is in no ``explain()``, no checkpoint and no average. No event is sent for such an optimizer.
    An optimizer's constructor sends ``parameters_added``: call it in ``making_internal``.
    """
    setattr(thing, MARK, True)
    return thing


def is_marked(thing: Module | Optimizer) -> bool:
    """Whether this very object is marked."""
    return getattr(thing, MARK, False) is True


@contextmanager
def making_internal() -> Iterator[None]:
    """Meanwhile each optimizer that is made is marked before any event is sent for it.

    For engines that make optimizers of their own.
    """
    with ExitStack() as undo:
        for name in ("add_param_group", "__setstate__"):
            undo.callback(replace(Optimizer, name, _marking))
        yield


def _marking(original: Callable[..., None]) -> Callable[..., None]:
    def mark(optimizer: Optimizer, *args: object, **kwargs: object) -> None:
        if not vars(optimizer).get("param_groups"):  # it is being made
            mark_internal(optimizer)
        original(optimizer, *args, **kwargs)

    return mark
