"""Access to private names; a missing one raises an error that names it."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from torchbus.errors import UsageError

OLDEST, NEWEST = "2.6", "2.13"
"""The releases of torch between which every private name was seen."""


def require_torch() -> None:
    """Raise ImportError under an older torch. ``__version__`` compares by packaging's rules."""
    if torch.__version__ < OLDEST:
        raise ImportError(
            f"torchbus needs torch {OLDEST} or later, and this is torch {torch.__version__}:"
            " pip install --upgrade torch"
        )


def private(holder: object, name: str, need: str) -> Any:
    """Return torch's function of this name; if it does not exist, one that raises UsageError.

    ``need`` says what the name does for the session, as in "distinguishes a nested backward".
    """

    def raises(*args: object, **kwargs: object) -> NoReturn:
        raise absent(holder, name, need)

    return getattr(holder, name, raises)


def require(holder: object, name: str, need: str) -> None:
    """Raise UsageError unless an object, a module or a class has this attribute.

    An attribute of a class's instances counts if the class annotates it, or if one of its methods
    sets or reads it. Annotations count even where other code has replaced the methods.
    """
    kinds = getattr(holder, "__mro__", ())
    is_annotated = any(name in getattr(kind, "__annotations__", {}) for kind in kinds)
    if not (hasattr(holder, name) or is_annotated or _is_in_methods(holder, name)):
        raise absent(holder, name, need)


def absent(holder: object, name: str, need: str) -> UsageError:
    owner = holder if hasattr(holder, "__name__") else type(holder)
    names = [getattr(owner, part, "") for part in ("__module__", "__name__")]
    place = ".".join(part for part in names if part)
    return UsageError(
        f"torch {torch.__version__} has no {place}.{name}, which {need}: install torch {OLDEST} to"
        f" {NEWEST}, or a newer torchbus"
    )


def _is_in_methods(holder: object, name: str) -> bool:
    """Whether a method of the class, or what it wraps, names an attribute of instances."""
    methods = [method for kind in getattr(holder, "__mro__", ()) for method in vars(kind).values()]
    cells = [cell for method in methods for cell in getattr(method, "__closure__", None) or ()]
    functions = [*methods, *(cell.cell_contents for cell in cells)]
    codes = (getattr(function, "__code__", None) for function in functions)
    return any(code is not None and name in code.co_names for code in codes)
