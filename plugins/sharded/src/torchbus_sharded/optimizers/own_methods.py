"""``optimizer.eval()`` of a schedule-free optimizer: methods of its class's own, called between steps, see the whole state."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer


def own_methods(optimizer: Optimizer) -> list[str]:
    """What an optimizer's class has beside what every optimizer has: public methods."""
    names = dict.fromkeys(name for cls in type(optimizer).__mro__ if issubclass(cls, Optimizer) for name in vars(cls))
    return [
        name
        for name in names
        if not name.startswith("_") and not hasattr(Optimizer, name) and inspect.isfunction(inspect.getattr_static(optimizer, name))
    ]


def surround(optimizer: Optimizer, before: Callable[[str], None]) -> Callable[[], None]:
    """``before(name)`` runs first. Returns what puts the methods back."""
    own = vars(optimizer)
    made = {name: _after(before, name, getattr(optimizer, name)) for name in own_methods(optimizer)}
    own.update(made)

    def undo() -> None:
        for name, method in made.items():
            if own.get(name) is method:
                del own[name]

    return undo


def _after(before: Callable[[str], None], name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        before(name)
        return method(*args, **kwargs)

    return call
