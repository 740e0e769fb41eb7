"""What the loop gives to ``optimizer.step``: a closure, or arguments of the optimizer's own (Polyak's ``step(loss)``)."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch.nn import Module

Closure = Callable[..., Any]
NAME = "closure"


class Given:
    """The arguments of one call of ``step``, without the optimizer. ``closure``: the function among them that is the closure, or None."""

    __slots__ = ("_args", "_kwargs", "_place", "closure")

    def __init__(self, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._args, self._kwargs = args, kwargs
        self._place = _place(cls, args, kwargs) if args or kwargs else None
        self.closure: Closure | None = None if self._place is None else args[self._place] if isinstance(self._place, int) else kwargs[self._place]

    def exchanged(self, closure: Closure | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with another closure where the loop's was; as they are where there was none and there is to be none."""
        if self._place is None:
            return self._args, self._kwargs if closure is None else self._kwargs | {NAME: closure}
        if isinstance(self._place, str):
            return self._args, self._kwargs | {self._place: closure}
        return (*self._args[: self._place], closure, *self._args[self._place + 1 :]), self._kwargs


def _place(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | str | None:
    """Where the closure is: what the optimizer calls so, else the first function. Only what can be called is one."""
    if callable(kwargs.get(NAME)):
        return NAME
    declared = _declared(cls)
    if declared is None:
        return next((index for index, value in enumerate(args) if _is_function(value)), None)
    return declared if 0 <= declared < len(args) and callable(args[declared]) else None


@functools.lru_cache(maxsize=64)
def _declared(cls: type) -> int | None:
    """The position of the parameter ``closure`` after ``self``: -1 where ``step`` takes it by keyword only, None where it has none."""
    try:
        parameters = list(inspect.signature(cls.step).parameters.values())[1:]  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        return None
    places = [-1 if one.kind is one.KEYWORD_ONLY else index for index, one in enumerate(parameters) if one.name == NAME]
    return places[0] if places else None


def _is_function(value: object) -> bool:
    return callable(value) and not isinstance(value, Module | type)
