"""Refuses what is passed to ``session`` by mistake, and names the form that was meant."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import NoReturn

from torch.nn import Module
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from torchbus.errors import UsageError

FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType)
MARKS = (
    "companions",
    "declares_events",
    "divides_data",
    "divides_states",
    "grad_batches",
    "owns",
    "verbs",
)


class NeedsParentheses(type):
    """Makes ``with session:`` an error that says what is missing."""

    def __enter__(cls) -> NoReturn:
        raise UsageError("`with session:` lacks its parentheses: write `with session() as s:`")

    def __exit__(cls, *_: object) -> None:
        """Python looks this method up, and never calls it."""


def refuse_no_plugin(thing: object) -> None:
    """Raise UsageError for an object that can't be a plugin.

    A plugin listens to events, or has another attribute of ``torchbus.plugin.Plugin``.
    """
    if isinstance(thing, type) and _is_marked(thing):
        raise UsageError(f"plugin {thing.__name__} is a class: pass an object, {thing.__name__}()")
    if isinstance(thing, (*FUNCTIONS, type)):
        name = getattr(thing, "__name__", repr(thing))
        raise UsageError(
            f"session({name}): {name} is no plugin. As a decorator, session has parentheses: write"
            " `@session()` above a function"
        )
    if not _is_marked(thing):
        raise UsageError(
            f"session({_short(thing)}): a {type(thing).__name__} is no plugin, since it listens to"
            f" no event: {_remedy(thing)}"
        )


def refuse_late_body(function: Callable[..., object]) -> None:
    """Raise UsageError for a function whose body would run after the session has ended."""
    if isinstance(function, type) or not callable(function):
        name = getattr(function, "__name__", repr(function))
        raise UsageError(
            f"@session() on {name}, which is no function: write it above the function that trains,"
            " or `with session():` around the loop"
        )
    body = inspect.unwrap(function)
    kinds = {
        "a generator function": (
            inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body)
        ),
        "an async function": inspect.iscoroutinefunction(body),
    }
    for kind in (kind for kind, found in kinds.items() if found):
        name = getattr(function, "__name__", repr(function))
        raise UsageError(
            f"@session() on {name}, {kind}: its body would run after the session has ended. Write"
            " `with session(...):` inside it"
        )


def _is_marked(thing: object) -> bool:
    own = thing if isinstance(thing, type) else type(thing)
    names = {*dir(own), *getattr(thing, "__dict__", ())}
    return any(name in names for name in MARKS) or any(
        _listens(thing, name) for name in names if not name.startswith("__")
    )


def _listens(thing: object, name: str) -> bool:
    function = inspect.getattr_static(thing, name, None)
    return hasattr(getattr(function, "__func__", function), "torchbus_impl")


def _remedy(thing: object) -> str:
    if isinstance(thing, Module | Optimizer | DataLoader):
        return "the session finds models, optimizers and loaders by itself, so leave it out"
    if isinstance(thing, int) and not isinstance(thing, bool):
        return f"write devices={thing}"
    if isinstance(thing, list | tuple | set):
        return "pass plugins one by one"
    return "pass objects with methods marked `@hookimpl`, names of plugins, or options by keyword"


def _short(thing: object) -> str:
    return repr(thing) if isinstance(thing, int | float | None) else type(thing).__name__
