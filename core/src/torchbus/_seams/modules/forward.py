"""The ``forward`` of chosen models, for plugins that surround it.

It is not an event, so it costs nothing elsewhere.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch.nn import Module

Around = Callable[..., object]
BELOW = "torchbus_below"


class Surround:
    """Calls ``around(model, forward, args, kwargs)`` instead of the ``forward`` of added models.

    It replaces the method on the model's class, and lets other instances pass. So the model itself
    stays as it was, also for pickling and copying. A model that has a ``forward`` of its own (a
    compiled one) has that replaced. ``traced``: torch.compile may compile ``around`` with the
    model. Otherwise a compiled ``forward`` is left alone.
    """

    def __init__(self, around: Around, traced: bool = True) -> None:
        self._around = around
        self._traced = traced
        self._models: set[int] = set()
        self._classes: set[type] = set()
        self._stack = ExitStack()

    def add(self, model: Module) -> None:
        """Surround this model from its next call on."""
        if model in self:
            return
        self._models.add(id(model))
        weakref.finalize(model, self._models.discard, id(model))
        if "forward" in vars(model):
            self._replace_own(model)
            return
        owner = next(base for base in type(model).__mro__ if "forward" in vars(base))
        if owner not in self._classes:
            self._classes.add(owner)
            self._stack.callback(self._replace_method(owner))

    def __contains__(self, model: Module) -> bool:
        return id(model) in self._models

    def close(self) -> None:
        """Put every class and model back as it was."""
        self._stack.close()
        self._models.clear()
        self._classes.clear()

    def _replace_method(self, owner: Any) -> Callable[[], None]:
        below = [vars(owner)["forward"]]
        traced = self._traced

        def forward(model: Module, *args: object, **kwargs: object) -> object:
            if (not traced and torch.compiler.is_compiling()) or id(model) not in self._models:
                return below[0](model, *args, **kwargs)
            return self._around(model, functools.partial(below[0], model), args, kwargs)

        ours = functools.update_wrapper(forward, below[0])
        vars(ours)[BELOW] = below
        owner.forward = ours
        return lambda: _take_out(owner, ours)

    def _replace_own(self, model: Module) -> None:
        own = vars(model)["forward"]
        reference = weakref.ref(model)

        def forward(*args: object, **kwargs: object) -> object:
            return self._around(reference(), own, args, kwargs)

        def undo() -> None:
            found = reference()
            if found is not None and vars(found).get("forward") is forward:
                vars(found)["forward"] = own

        vars(model)["forward"] = forward
        self._stack.callback(undo)


def _take_out(owner: Any, ours: Callable[..., object]) -> None:
    """Remove this one from a stack of surrounds, which plugins may end in any order.

    What surrounds the same class on top of it continues with what is below it.
    """
    on_top, below = None, vars(owner)["forward"]
    while below is not ours and BELOW in vars(below):
        on_top, below = below, vars(below)[BELOW][0]
    if below is not ours:
        warnings.warn(
            "forward was replaced inside the session and not put back: torchbus leaves it so",
            stacklevel=2,
        )
    elif on_top is None:
        owner.forward = vars(ours)[BELOW][0]
    else:
        vars(on_top)[BELOW][0] = vars(ours)[BELOW][0]
