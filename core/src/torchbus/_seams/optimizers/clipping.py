"""``clip_grad_norm_`` and ``clip_grad_value_`` of torch.nn.utils, however they were imported."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from types import CellType, FunctionType
from typing import Any

from torch.nn.utils import clip_grad

from torchbus._seams.ears import Ears

PLACE = "clip_grad_norm_, clip_grad_value_"
EVENTS = ("skip_clipping", "gradient_norm")


def install(ears: Ears) -> Callable[[], None]:
    """Both are wrappers that keep the real function in a closure: it is exchanged there, for scripts import them by name. What somebody has put
    in their place, and keeps none, is replaced itself."""

    def norm(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def clip_grad_norm_(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> Any:
            skip = ears.hook.skip_clipping()
            norm = original(parameters, float("inf") if skip else max_norm, *args, **kwargs)
            ears.hook.gradient_norm(norm=norm)
            return norm

        return clip_grad_norm_

    def value(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def clip_grad_value_(*args: Any, **kwargs: Any) -> None:
            if not ears.hook.skip_clipping():
                original(*args, **kwargs)

        return clip_grad_value_

    stack = ExitStack()
    for name, make in (("clip_grad_norm_", norm), ("clip_grad_value_", value)):
        cell = _real_function(getattr(clip_grad, name))
        if cell is None:
            stack.callback(ears.replace(clip_grad, name, make))
        else:
            stack.callback(setattr, cell, "cell_contents", cell.cell_contents)
            cell.cell_contents = make(cell.cell_contents)
    return stack.close


def _real_function(function: Callable[..., Any]) -> CellType | None:
    """Where torch's wrapper, ``no_grad`` as a decorator, keeps it."""
    cells = function.__closure__ if isinstance(function, FunctionType) and function.__module__ == clip_grad.__name__ else None
    return next((cell for cell in cells or () if isinstance(cell.cell_contents, FunctionType)), None)
