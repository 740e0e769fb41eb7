"""Replace an attribute of torch, and put it back."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any


def replace(owner: Any, name: str, make: Callable[[Any], Any], becomes_inert: bool = False) -> Callable[[], None]:
    """Set ``owner.name`` to ``make(original)``; the returned function undoes it.

    Where somebody has replaced it once more in the meantime, a warning says so and theirs stays;
    no warning where ours ``becomes_inert`` and may stay below (torch.compile wraps every optimizer's step when it is first used).
    """
    original = vars(owner)[name]
    ours = make(original)

    def undo() -> None:
        if vars(owner)[name] is ours:
            setattr(owner, name, original)
        elif not becomes_inert:
            warnings.warn(f"{name} was replaced inside the session and not put back: torchbus leaves it so", stacklevel=2)

    setattr(owner, name, functools.update_wrapper(ours, original))
    return undo
