"""What the loop passes to ``optimizer.step``: a closure, or arguments such as Polyak's loss."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch.nn import Module

Closure = Callable[..., object]
NAME = "closure"


class Given:
    """The arguments of one call of ``step``, without the optimizer.

    ``closure``: the closure among them, or None.
    """

    __slots__ = ("_args", "_kwargs", "_place", "closure")

    def __init__(self, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._args, self._kwargs = args, kwargs
        self._place = _place(cls, args, kwargs) if args or kwargs else None
        self.closure: Closure | None = (
            None
            if self._place is None
            else args[self._place]
            if isinstance(self._place, int)
            else kwargs[self._place]
        )

    def exchanged(self, closure: Closure | None) -> tuple[tuple[object, ...], dict[str, object]]:
        """Return the arguments with another closure in the place of the loop's.

        They stay as they are if the loop gave none and None is to replace it.
        """
        if self._place is None:
            return self._args, self._kwargs if closure is None else self._kwargs | {NAME: closure}
        if isinstance(self._place, str):
            return self._args, self._kwargs | {self._place: closure}
        return (*self._args[: self._place], closure, *self._args[self._place + 1 :]), self._kwargs


def _place(cls: type, args: tuple[object, ...], kwargs: dict[str, object]) -> int | str | None:
    """Return where the closure is: the argument of that name, else the first function.

    Only a callable counts.
    """
    if callable(kwargs.get(NAME)):
        return NAME
    declared = _declared(cls)
    if declared is None:
        return next((index for index, value in enumerate(args) if _is_function(value)), None)
    return declared if 0 <= declared < len(args) and callable(args[declared]) else None


@functools.lru_cache(maxsize=64)
def _declared(cls: Any) -> int | None:
    """Return the position of the parameter ``closure`` after ``self``.

    -1 if ``step`` takes it by keyword only, None if it has no such parameter.
    """
    try:
        parameters = list(inspect.signature(cls.step).parameters.values())[1:]
    except (TypeError, ValueError):
        return None
    places = [
        -1 if one.kind is one.KEYWORD_ONLY else index
        for index, one in enumerate(parameters)
        if one.name == NAME
    ]
    return places[0] if places else None


def _is_function(value: object) -> bool:
    return callable(value) and not isinstance(value, Module | type)
