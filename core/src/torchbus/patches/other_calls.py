"""Patches of gradient clipping and of ``torch.save``."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad

from torchbus.compat.torch_names import real_clipping
from torchbus.patches.patching import EventEmitter, emits, replace
from torchbus.tree import as_list


@emits(
    "clip_grad_norm_, clip_grad_value_",
    "clip_gradients",
    "clip_gradient_values",
    "gradient_norm",
)
def clipping(emitter: EventEmitter) -> Callable[[], None]:
    """Replace the real functions inside torch's wrappers, since scripts import the wrappers by
    name.

    A wrapper keeps its function in a closure. If other code has put a function without such a
    closure in the wrapper's place, that function is replaced itself.
    """

    def by_norm(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @functools.wraps(original)
        def clip_grad_norm_(
            parameters: Tensor | Iterable[Tensor],
            max_norm: float,
            norm_type: float = 2.0,
            *args: object,
            **kwargs: object,
        ) -> Tensor:
            tensors = as_list(parameters)

            def run(max_norm: float) -> Tensor:
                return original(tensors, max_norm, norm_type, *args, **kwargs)

            answer: Tensor | None = emitter.hook.clip_gradients(
                parameters=tensors, max_norm=max_norm, norm_type=norm_type, run=run
            )
            norm = run(max_norm) if answer is None else answer
            emitter.hook.gradient_norm(norm=norm)
            return norm

        return clip_grad_norm_

    def by_value(original: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(original)
        def clip_grad_value_(
            parameters: Tensor | Iterable[Tensor],
            clip_value: float,
            *args: object,
            **kwargs: object,
        ) -> None:
            tensors = as_list(parameters)
            if not emitter.hook.clip_gradient_values(parameters=tensors, clip_value=clip_value):
                original(tensors, clip_value, *args, **kwargs)

        return clip_grad_value_

    stack = ExitStack()
    makers: dict[str, Any] = {"clip_grad_norm_": by_norm, "clip_grad_value_": by_value}
    for name, make in makers.items():
        cell = real_clipping(getattr(clip_grad, name))
        if cell is None:
            stack.callback(replace(clip_grad, name, make))
        else:
            stack.callback(setattr, cell, "cell_contents", cell.cell_contents)
            cell.cell_contents = make(cell.cell_contents)
    return stack.close


@emits("torch.save", "save_file")
def torch_save(emitter: EventEmitter) -> Callable[[], None]:
    """Patch saves to a path; saves to an open file or buffer are unchanged."""

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def save(obj: object, f: object, *args: object, **kwargs: object) -> None:
            if not isinstance(f, str | os.PathLike):
                return original(obj, f, *args, **kwargs)

            def write(path: str) -> None:
                original(obj, path, *args, **kwargs)

            path = str(os.fspath(f))
            if emitter.hook.save_file(path=path, write=write) is None:
                write(path)

        return save

    return replace(torch, "save", make)
