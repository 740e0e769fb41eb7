"""Replace a method that may be inherited, and put the class back as it was."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """``owner.name`` is ``make(original)`` inside the block."""
    own = vars(owner).get(name)
    original = getattr(owner, name)
    ours = functools.update_wrapper(make(original), original)
    setattr(owner, name, ours)
    try:
        yield
    finally:
        if vars(owner).get(name) is ours:  # else somebody has replaced it once more: theirs stays
            setattr(owner, name, own) if own is not None else delattr(owner, name)
