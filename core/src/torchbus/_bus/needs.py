"""Options that mean nothing without another one are refused where that one was not said."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torchbus.errors import UsageError

Maker = TypeVar("Maker", bound=Callable[..., Any])


def needs(main: str, *options: str, verbs: tuple[str, ...] = ()) -> Callable[[Maker], Maker]:
    """For a plugin's class, or the function that makes it: ``options`` and ``verbs`` mean nothing unless ``main`` is given.

    ``main=None`` is given: a script may switch it off and leave the rest. Decorators may be stacked.
    """

    def decorate(maker: Maker) -> Maker:
        make: Callable[..., Any] = maker.__init__ if isinstance(maker, type) else maker  # type: ignore[misc]
        signature = inspect.signature(make)

        @functools.wraps(make)
        def checked(*args: Any, **kwargs: Any) -> Any:
            made = make(*args, **kwargs)  # first of all it says what is wrong with a value
            _refuse(main, options, signature.bind(*args, **kwargs).arguments)
            return made

        made: Any = maker
        if isinstance(maker, type):
            made.__init__ = checked
        else:
            made = checked
        made.options_needed = {**getattr(maker, "options_needed", {}), **dict.fromkeys(options, main)}
        made.verbs_needing = {**getattr(maker, "verbs_needing", {}), **dict.fromkeys(verbs, main)}
        return made  # type: ignore[no-any-return]

    return decorate


def _refuse(main: str, options: tuple[str, ...], given: Mapping[str, Any]) -> None:
    alone = [name for name in options if name in given]
    if alone and main not in given:
        said = ", ".join(f"{name}={given[name]!r}" for name in alone)
        raise UsageError(f"{said} without {main}=...: it would do nothing. Say {main}=... as well, or leave it out")


def refuse_verb(maker: Any, verb: str) -> None:
    """Raise UsageError for a verb of a plugin that nobody has asked for, where it needs an option."""
    main = getattr(maker, "verbs_needing", {}).get(verb)
    if main is not None:
        raise UsageError(f"s.{verb} without {main}=...: it would always be the same. Say session({main}=...)")
