"""Replace an attribute of torch, and put it back."""

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
    owner: Any, name: str, make: Callable[[Any], Any], becomes_inert: bool = False, left_below: Callable[[], None] = lambda: None
) -> Callable[[], None]:
    """Set ``owner.name`` to ``make(original)``, where the original may be inherited; the returned function undoes it.

    Replacements of ours may be undone in any order. Where somebody else has replaced it once more in the meantime, theirs stays:
    ``left_below()`` is called, and a warning says so; no warning where ours ``becomes_inert`` and may stay below (torch.compile wraps every
    optimizer's step when it is first used).
    """
    own = vars(owner).get(name, NOTHING)
    original = own if own is not NOTHING else inspect.getattr_static(owner, name) if isinstance(owner, type) else getattr(owner, name)
    ours = named(make(original), owner, name, original)

    if ours is original:
        return lambda: None
    vars(ours)[PUTS_BACK] = own

    def undo() -> None:
        put_back, now = vars(ours)[PUTS_BACK], vars(owner).get(name)
        if now is not ours:
            left_below()
            above = _replacement_above(ours, now)
            if above is not None:
                vars(above)[PUTS_BACK] = put_back
            elif not becomes_inert:
                warnings.warn(f"{name} was replaced inside the session and not put back: torchbus leaves it so", stacklevel=2)
        elif put_back is NOTHING:
            delattr(owner, name)
        else:
            setattr(owner, name, put_back)

    setattr(owner, name, ours)
    return undo


def _replacement_above(ours: Any, top: Any) -> Any:
    """That replacement of ours which would put this one back; None if somebody else's is on top."""
    while top is not None and PUTS_BACK in getattr(top, "__dict__", {}):
        if vars(top)[PUTS_BACK] is ours:
            return top
        top = vars(top)[PUTS_BACK]
    return None


def named(ours: Any, owner: Any, name: str, original: Any) -> Any:
    """Ours looks like the original, but says where it is found: pickle refers to functions by their place. A class does not bind a
    builtin, and so must not bind what stands in for it."""
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
