"""Replaces an attribute of torch, and puts it back."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

NOTHING = object()
PUTS_BACK = "torchbus_puts_back"


def replace(
    owner: object,
    name: str,
    make: Callable[[Any], object],
    becomes_inert: bool = False,
    left_below: Callable[[], None] = lambda: None,
) -> Callable[[], None]:
    """Set ``owner.name`` to ``make(original)``. Return the function that undoes it.

    The original may be inherited. Replacements of ours may be undone in any order. If other code
    has replaced the attribute once more in the meantime, its function stays: ``left_below()`` is
    called, and a warning says so. There is no warning if ours ``becomes_inert`` and may stay below:
    torch.compile wraps every optimizer's step when it is first used.
    """
    own = vars(owner).get(name, NOTHING)
    original = _inherited(owner, name) if own is NOTHING else own
    ours = named(make(original), owner, name, original)
    if ours is original:
        return lambda: None
    vars(ours)[PUTS_BACK] = own

    def undo() -> None:
        now = vars(owner).get(name)
        if now is ours:
            _put_back(owner, name, ours)
            return
        left_below()
        if not _took_out(ours, now) and not becomes_inert:
            warnings.warn(
                f"{name} was replaced inside the session and not put back: torchbus leaves it so",
                stacklevel=2,
            )

    setattr(owner, name, ours)
    return undo


def _inherited(owner: object, name: str) -> object:
    return inspect.getattr_static(owner, name) if isinstance(owner, type) else getattr(owner, name)


def _put_back(owner: object, name: str, ours: object) -> None:
    original = vars(ours)[PUTS_BACK]
    if original is NOTHING:
        delattr(owner, name)
    else:
        setattr(owner, name, original)


def _took_out(ours: object, top: object) -> bool:
    """Let the replacement of ours above this one put back what this one would have put back.

    Returns whether there is one.
    """
    above = _replacement_above(ours, top)
    if above is not None:
        vars(above)[PUTS_BACK] = vars(ours)[PUTS_BACK]
    return above is not None


def _replacement_above(ours: object, top: object) -> object:
    """Return the replacement of ours that would put this one back. None if other code is on top."""
    while top is not None and PUTS_BACK in getattr(top, "__dict__", {}):
        if vars(top)[PUTS_BACK] is ours:
            return top
        top = vars(top)[PUTS_BACK]
    return None


def named(ours: Any, owner: object, name: str, original: Any) -> object:
    """Make our function look like the original, and say where it is found.

    pickle refers to functions by their place. A class does not bind a builtin, so it must not bind
    what replaces one.
    """
    if ours is original:
        return ours
    functools.update_wrapper(ours, original)
    if not hasattr(original, "__annotations__"):
        ours.__annotations__ = {}
    if isinstance(owner, ModuleType):
        ours.__module__, ours.__qualname__ = owner.__name__, name
    elif isinstance(owner, type):
        ours.__module__, ours.__qualname__ = owner.__module__, f"{owner.__qualname__}.{name}"
        return ours if hasattr(original, "__get__") else staticmethod(ours)
    return ours
