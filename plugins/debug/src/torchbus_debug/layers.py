"""Which layers gave something that is not finite, noted while the models run.

For strategies whose ranks call a model together: there no rank can repeat a call alone.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import Module

from torchbus_debug.calls import hook_of, local, tensors_in

MAX_NOTES = 1 << 16


class Layers:
    """Notes of the layers' outputs and their gradients since the last step.

    A note is a tensor on the device, so taking one waits for nothing.
    """

    def __init__(self) -> None:
        self._known: weakref.WeakSet[Module] = weakref.WeakSet()
        self._handles: list[torch.utils.hooks.RemovableHandle] = []
        self._outputs: deque[tuple[str, Tensor]] = deque(maxlen=MAX_NOTES)
        self._gradients: deque[tuple[str, Tensor]] = deque(maxlen=MAX_NOTES)

    def add(self, model: Module) -> None:
        """Take notes of this model's layers from its next call on.

        What a model of several layers returns may come from another rank.
        """
        for name, part in model.named_modules():
            is_layer = bool(name) or next(part.children(), None) is None
            if is_layer and part not in self._known:
                self._known.add(part)
                self._handles.append(part.register_forward_hook(hook_of(name, part, self._ran)))

    def _ran(self, name: str, output: object) -> None:
        if not torch.is_grad_enabled():
            return
        for tensor in tensors_in(output):
            self._outputs.append((f"the output of {name}", note(tensor)))
            if tensor.grad_fn is not None:
                tensor.register_hook(self._noter(f"the gradient of the output of {name}"))

    def _noter(self, name: str) -> Callable[[Tensor], None]:
        return lambda gradient: self._gradients.append((name, note(gradient)))

    def first(self, *, in_backward: bool) -> str:
        """Return the first layer on this rank that gave something not finite, or ""."""
        notes = [*self._outputs, *(self._gradients if in_backward else ())]
        return next((name for name, finite in notes if not finite), "")

    def clear(self) -> None:
        """Forget the calls. A step has been made."""
        self._outputs.clear()
        self._gradients.clear()

    def close(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()
        self.clear()


def note(tensor: Tensor) -> Tensor:
    return torch.isfinite(local(tensor.detach())).all()
