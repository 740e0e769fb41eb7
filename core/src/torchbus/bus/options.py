"""Checks the options of ``session(...)``: types, required combinations, and mistaken calls."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, NoReturn, TypeVar, cast

from torch.nn import Module
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from torchbus.bus import discovery
from torchbus.errors import UsageError, an

FORMS = ("auto", "script", "fork", "spawn")


def plain(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options with Python's numbers in the place of NumPy's."""

    def number(value: Any) -> Any:
        is_numpys = type(value).__module__ == "numpy" and not getattr(value, "ndim", 1)
        return value.item() if is_numpys else value

    return {name: number(value) for name, value in given.items()}


def expect(name: str, value: object, types: type | tuple[type, ...], expected: str) -> None:
    """Raise UsageError unless an option has one of these types. It rejects "", and bools as int."""
    wanted = types if isinstance(types, tuple) else (types,)
    is_empty = isinstance(value, str) and not value
    if is_empty or not isinstance(value, wanted) or (type(value) is bool and bool not in wanted):
        found = "empty" if is_empty else an(type(value).__name__)
        raise UsageError(f"{name}={value!r} is {found}: it must be {expected}")


def check(given: dict[str, Any]) -> None:
    """Raise UsageError if an option of the session's own has a wrong type or value."""
    for name in ("capture", "verbose", "print_all_ranks"):
        expect(name, given[name], bool, "True or False")
    expect("num_nodes", given["num_nodes"], int, "a number of machines")
    for name in ("timeout_s", "hang_timeout", "freeze_timeout"):
        expect(name, given[name], (int, float), "a number of seconds")
        if not given[name] > 0:
            raise UsageError(f"{name}={given[name]}: it must be positive")
    expect("accelerator", given["accelerator"], str, "'auto', 'cpu', 'gpu' or a device type")
    expect("prefetch", given["prefetch"], int, "0 or 1")
    if given["prefetch"] not in (0, 1):
        raise UsageError(f"prefetch={given['prefetch']}: it must be 0 or 1 (batches copied ahead)")
    expect("seed", given["seed"], (int, type(None)), "a whole number from 0 to 4294967295")
    if given["seed"] is not None and not 0 <= given["seed"] < 2**32:
        raise UsageError(f"seed={given['seed']}: it must be from 0 to 4294967295 (as in NumPy)")
    if given["num_nodes"] < 1:
        raise UsageError(f"num_nodes={given['num_nodes']}: there must be at least one")
    if given["launch"] not in FORMS:
        known = " or ".join(map(repr, FORMS))
        raise UsageError(f"launch={given['launch']!r} is unknown: use {known}")


Maker = TypeVar("Maker", bound=Callable[..., object])


def needs(
    main: str, *options: str, verbs: tuple[str, ...] = (), remedy: str = "leave it out"
) -> Callable[[Maker], Maker]:
    """Declare for a plugin's class or factory that ``options`` and ``verbs`` need ``main``.

    ``main=None`` counts as given: a script may switch the feature off and leave its other options.
    ``remedy`` says what else to do. Decorators may be stacked.
    """

    def decorate(maker: Maker) -> Maker:
        made: Any = maker
        make: Callable[..., object] = made.__init__ if isinstance(maker, type) else maker
        signature = inspect.signature(make)

        @functools.wraps(make)
        def checked(*args: object, **kwargs: object) -> object:
            result = make(*args, **kwargs)  # the constructor first reports wrong values
            _refuse(main, options, signature.bind(*args, **kwargs).arguments, remedy)
            return result

        if isinstance(maker, type):
            made.__init__ = checked
        else:
            made = checked
        made.options_needed = {
            **getattr(maker, "options_needed", {}),
            **dict.fromkeys(options, main),
        }
        made.verbs_needing = {**getattr(maker, "verbs_needing", {}), **dict.fromkeys(verbs, main)}
        return cast(Maker, made)

    return decorate


def _refuse(main: str, options: tuple[str, ...], given: Mapping[str, object], remedy: str) -> None:
    alone = [name for name in options if name in given]
    if alone and main not in given:
        said = ", ".join(f"{name}={given[name]!r}" for name in alone)
        raise UsageError(
            f"{said} without {main}=...: it would do nothing. Pass {main}=... as well, or {remedy}"
        )


def refuse_verb(maker: object, verb: str) -> None:
    """Raise UsageError for a verb that needs an option, if no option has activated its plugin."""
    main = getattr(maker, "verbs_needing", {}).get(verb)
    if main is not None:
        raise UsageError(
            f"s.{verb} without {main}=...: it would always be the same. Pass session({main}=...)"
        )


MARKS = {"companions", "declares_events", "divides_data", "divides_states", "grad_batches"}
MARKS |= {"owns", "verbs"}


class NeedsParentheses(type):
    """Makes ``with session:`` an error that says what is missing."""

    def __enter__(cls) -> NoReturn:
        raise UsageError("`with session:` lacks its parentheses: write `with session() as s:`")

    def __exit__(cls, *_: object) -> None:
        """Python looks this method up, and never calls it."""


def refuse_no_plugin(thing: object, role: str = "") -> None:
    """Raise UsageError unless an object listens to events, or has an attribute of ``Plugin``.

    ``role`` is "strategy" or "logger" if the object was passed as one.
    """
    if isinstance(thing, type) and _is_marked(thing):
        raise UsageError(f"plugin {thing.__name__} is a class: pass an object, {thing.__name__}()")
    if role and not _is_marked(thing):
        raise UsageError(
            f"{role}={thing!r} is not a {role}: "
            + _remedy(thing, "pass a name, or an object that listens to events")
        )
    if isinstance(thing, FunctionType | BuiltinFunctionType | MethodType | type):
        name = getattr(thing, "__name__", repr(thing))
        decorates = "write `@session()`, with parentheses, above a function that trains"
        raise UsageError(f"session({name}): {name} is not a plugin: {_remedy(thing, decorates)}")
    if not _is_marked(thing):
        shown = repr(thing) if isinstance(thing, int | float | None) else type(thing).__name__
        raise UsageError(
            f"session({shown}): {an(type(thing).__name__)} is not a plugin, since it"
            " listens to no event: "
            + _remedy(
                thing,
                "pass objects with `@hookimpl` methods, names of plugins, or options by keyword",
            )
        )


def refuse_late_body(function: Callable[..., object]) -> None:
    """Raise UsageError for a function whose body would run after the session has ended."""
    if isinstance(function, type) or not callable(function):
        name = getattr(function, "__name__", repr(function))
        raise UsageError(
            f"@session() on {name}, which is not a function: write it above the function that"
            " trains, or `with session():` around the loop"
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
    mine = thing if isinstance(thing, type) else type(thing)
    names = {*dir(mine), *getattr(thing, "__dict__", ())}
    return any(name in MARKS or _listens(thing, name) for name in names if name[:2] != "__")


def _listens(thing: object, name: str) -> bool:
    function = inspect.getattr_static(thing, name, None)
    return hasattr(getattr(function, "__func__", function), "torchbus_impl")


def _remedy(thing: object, otherwise: str) -> str:
    if isinstance(thing, Module | Optimizer | DataLoader):
        return "the session finds models, optimizers and loaders itself, so leave it out"
    if isinstance(thing, int) and not isinstance(thing, bool):
        return f"write devices={thing}"
    if isinstance(thing, list | tuple | set):
        return "pass plugins one by one"
    kind = thing if isinstance(thing, type) else type(thing)
    hints = (discovery.hint("object", one.__name__) for one in kind.__mro__)
    return next(filter(None, hints), otherwise)
