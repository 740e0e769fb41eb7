"""Names of torch and of torchbus that mean something else for a while."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: object, name: str, make: Callable[[Any], object]) -> Iterator[None]:
    """``owner.name`` is ``make(original)`` inside the block."""
    inherited = name not in vars(owner)
    original = getattr(owner, name)
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        delattr(owner, name) if inherited else setattr(owner, name, original)


@contextmanager
def sessions_replaced(kind: type) -> Iterator[None]:
    """What a script imports from torchbus as ``session`` is ``kind``."""
    package = sys.modules["torchbus"]
    with (
        replaced(package, "session", lambda _: kind),
        replaced(package, "Session", lambda _: kind),
    ):
        yield
