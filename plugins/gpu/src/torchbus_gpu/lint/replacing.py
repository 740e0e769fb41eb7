"""Replace a method, which may be inherited, and restore the class afterwards."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar, cast

Method = TypeVar("Method", bound=Callable[..., object])


@contextmanager
def replaced(owner: object, name: str, make: Callable[[Method], Method]) -> Iterator[None]:
    """Replace ``owner.name`` by ``make(original)`` inside the block."""
    defined = vars(owner).get(name)
    original = cast(Method, getattr(owner, name))
    ours = functools.update_wrapper(make(original), original)
    setattr(owner, name, ours)
    try:
        yield
    finally:
        if vars(owner).get(name) is ours:  # other code may have replaced it since, which stays
            setattr(owner, name, defined) if defined is not None else delattr(owner, name)
