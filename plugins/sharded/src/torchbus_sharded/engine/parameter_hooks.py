"""``weight.register_hook(mask)``: a hook sees the whole gradient of this rank's samples, as under ddp."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from torch import Tensor, nn
from torchbus.plugin import Unsupported


def move(before: Mapping[str, nn.Parameter], after: Mapping[str, nn.Parameter]) -> None:
    """To the tensors that have come in the place of others; ``handle.remove()`` goes on to work. Raises Unsupported for hooks that want a
    gradient which is accumulated."""
    for name, old in before.items():
        if getattr(old, "_post_accumulate_grad_hooks", None):
            refuse_accumulated(old)
        if old._backward_hooks:
            after[name]._backward_hooks = old._backward_hooks


def forward_to(part: Tensor) -> Any:
    """A hook for the tensor that is in the graph, which calls those of the part that the loop has. They may come and go."""

    def call(gradient: Tensor) -> Tensor:
        for hook in list((part._backward_hooks or {}).values()):
            changed = hook(gradient)
            gradient = gradient if changed is None else changed
        return gradient

    return call


def refuse_accumulated(tensor: Tensor, *_: Any) -> NoReturn:
    raise Unsupported(
        "register_post_accumulate_grad_hook of a parameter under strategy='fsdp': it would be called before ranks have averaged its gradient, and "
        "with the whole of it, which no rank keeps. Do after backward() what the hook does, or use strategy='ddp'"
    )
