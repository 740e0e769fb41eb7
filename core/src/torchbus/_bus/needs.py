"""Refuses options that do nothing without another option, if that one is missing."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from torchbus.errors import UsageError

Maker = TypeVar("Maker", bound=Callable[..., object])


def needs(main: str, *options: str, verbs: tuple[str, ...] = ()) -> Callable[[Maker], Maker]:
    """Declare for a plugin's class or factory that ``options`` and ``verbs`` need ``main``.

    ``main=None`` counts as given: a script may switch the feature off and leave the rest.
    Decorators may be stacked.
    """

    def decorate(maker: Maker) -> Maker:
        made: Any = maker
        make: Callable[..., object] = made.__init__ if isinstance(maker, type) else maker
        signature = inspect.signature(make)

        @functools.wraps(make)
        def checked(*args: object, **kwargs: object) -> object:
            result = make(*args, **kwargs)  # the constructor first reports wrong values
            _refuse(main, options, signature.bind(*args, **kwargs).arguments)
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


def _refuse(main: str, options: tuple[str, ...], given: Mapping[str, object]) -> None:
    alone = [name for name in options if name in given]
    if alone and main not in given:
        said = ", ".join(f"{name}={given[name]!r}" for name in alone)
        raise UsageError(
            f"{said} without {main}=...: it would do nothing. Say {main}=... as well, or leave"
            " it out"
        )


def refuse_verb(maker: object, verb: str) -> None:
    """Raise UsageError for a verb that needs an option, if no option has activated its plugin."""
    main = getattr(maker, "verbs_needing", {}).get(verb)
    if main is not None:
        raise UsageError(
            f"s.{verb} without {main}=...: it would always be the same. Say session({main}=...)"
        )
