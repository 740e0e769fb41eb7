"""Methods that an optimizer's class adds, such as ``eval()`` of a schedule-free optimizer.

Called between steps, they must see the whole state.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TypeVar

from torch.optim import Optimizer

T = TypeVar("T")


def added_methods(optimizer: Optimizer) -> list[str]:
    """The public methods that the optimizer's class, or its bases, add to those of Optimizer."""
    names = dict.fromkeys(
        name for cls in type(optimizer).__mro__ if issubclass(cls, Optimizer) for name in vars(cls)
    )
    return [
        name
        for name in names
        if not name.startswith("_")
        and not hasattr(Optimizer, name)
        and inspect.isfunction(inspect.getattr_static(optimizer, name))
    ]


def surround(optimizer: Optimizer, before: Callable[[str], None]) -> Callable[[], None]:
    """Call ``before(name)`` before each of them. Returns a function that puts them back."""
    own = vars(optimizer)
    made = {
        name: _after(before, name, getattr(optimizer, name)) for name in added_methods(optimizer)
    }
    own.update(made)

    def undo() -> None:
        for name, method in made.items():
            if own.get(name) is method:
                del own[name]

    return undo


def _after(before: Callable[[str], None], name: str, method: Callable[..., T]) -> Callable[..., T]:
    @functools.wraps(method)
    def call(*args: object, **kwargs: object) -> T:
        before(name)
        return method(*args, **kwargs)

    return call
