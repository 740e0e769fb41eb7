"""Replace an attribute of torch, and put it back."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

NOTHING = object()


def replace(
    owner: Any, name: str, make: Callable[[Any], Any], becomes_inert: bool = False, left_below: Callable[[], None] = lambda: None
) -> Callable[[], None]:
    """Set ``owner.name`` to ``make(original)``, where the original may be inherited; the returned function undoes it.

    Where somebody has replaced it once more in the meantime, theirs stays: ``left_below()`` is called, and a warning says so;
    no warning where ours ``becomes_inert`` and may stay below (torch.compile wraps every optimizer's step when it is first used).
    """
    own = vars(owner).get(name, NOTHING)
    original = own if own is not NOTHING else inspect.getattr_static(owner, name) if isinstance(owner, type) else getattr(owner, name)
    ours = named(make(original), owner, name, original)

    def undo() -> None:
        if vars(owner).get(name) is not ours:
            left_below()
            if not becomes_inert:
                warnings.warn(f"{name} was replaced inside the session and not put back: torchbus leaves it so", stacklevel=2)
        elif own is NOTHING:
            delattr(owner, name)
        else:
            setattr(owner, name, own)

    setattr(owner, name, ours)
    return undo


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
