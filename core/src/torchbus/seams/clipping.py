"""``clip_grad_norm_`` and ``clip_grad_value_`` of torch.nn.utils, however they were imported."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from torch.nn.utils import clip_grad

from torchbus.seams._ears import Ears

PLACE = "clip_grad_norm_, clip_grad_value_"
EVENTS = ("skip_clipping", "gradient_norm")


def install(ears: Ears) -> Callable[[], None]:
    """Both are wrappers that keep the real function in a closure: it is exchanged there, for scripts import them by name."""

    def norm(original: Callable[..., Any]) -> Callable[..., Any]:
        def clip_grad_norm_(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> Any:
            skip = ears.hook.skip_clipping()
            norm = original(parameters, float("inf") if skip else max_norm, *args, **kwargs)
            ears.hook.gradient_norm(norm=norm)
            return norm

        return clip_grad_norm_

    def value(original: Callable[..., Any]) -> Callable[..., Any]:
        def clip_grad_value_(*args: Any, **kwargs: Any) -> None:
            if not ears.hook.skip_clipping():
                original(*args, **kwargs)

        return clip_grad_value_

    stack = ExitStack()
    for function, make in ((clip_grad.clip_grad_norm_, norm), (clip_grad.clip_grad_value_, value)):
        cell = next(cell for cell in function.__closure__ or () if callable(cell.cell_contents))
        stack.callback(setattr, cell, "cell_contents", cell.cell_contents)
        cell.cell_contents = make(cell.cell_contents)
    return stack.close
