"""``weight.register_hook(mask)``: a hook gets the whole gradient of this rank's samples.

Under ddp it gets the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn

import torch
from torch import Tensor, nn
from torch.nn import Module
from torchbus.plugin import Unsupported

from torchbus_sharded._compat.tensors import (
    backward_hooks,
    post_accumulate_hooks,
    share_backward_hooks,
)


def named(model: Module) -> dict[str, nn.Parameter]:
    """The parameters by name. A shared one has several names."""
    return dict(model.named_parameters(remove_duplicate=False))


def move(before: Mapping[str, nn.Parameter], after: Mapping[str, nn.Parameter]) -> None:
    """Move hooks to the tensors that have replaced others. ``handle.remove()`` still works.

    Raises Unsupported for hooks that need an accumulated gradient.
    """
    for name, old in before.items():
        if post_accumulate_hooks(old):
            refuse_accumulated(old)
        share_backward_hooks(old, after[name])


def forward_to(part: Tensor) -> Callable[[Tensor], Tensor]:
    """A hook for the tensor in the graph. It calls the hooks of the part that the loop has.

    These may come and go.
    """

    def call(gradient: Tensor) -> Tensor:
        for hook in list((backward_hooks(part) or {}).values()):
            changed = hook(gradient)
            gradient = gradient if changed is None else changed
        return gradient

    return call


@contextmanager
def zeros_instead(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Replace the gradients that a backward inside gives to tensors in the graph by zeros.

    A weight of 0 would leave NaN as it is.
    """
    handles = [one.register_hook(torch.zeros_like) for one in tensors if one.requires_grad]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def refuse_accumulated(tensor: Tensor, *_: object) -> NoReturn:
    raise Unsupported(
        "register_post_accumulate_grad_hook of a parameter under strategy='fsdp': it would be"
        " called before ranks have averaged its gradient, and with the whole of it, which no rank"
        " keeps. Do after backward() what the hook does, or use strategy='ddp'"
    )
