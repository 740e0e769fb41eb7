"""Records the calls of models in a step, and repeats them to find the layer that went wrong."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torchbus.plugin import Surround

from torchbus_strategy import random_streams
from torchbus_strategy.batches import collect
from torchbus_strategy.compat import local_part

CALLS_AT_MOST = 64


@dataclass
class OutermostCall:
    """One call of an outermost model. ``gradients``: those of its outputs, on this rank alone.

    ``batches``: descriptions of what feeds its backward, with the batches.
    """

    model: weakref.ref[Module]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    gradients: dict[int, Tensor] = field(default_factory=dict)
    batches: list[tuple[str, object]] | None = None

    def repeat(self) -> list[Tensor]:
        """Call the model again. Return the tensors of its output."""
        model = self.model()
        return [] if model is None else tensors_in(model(*self.args, **self.kwargs))


class CallHistory:
    """Holds the models' calls since the last step, and repeats them to find the faulty layer."""

    def __init__(self) -> None:
        self._surround = Surround(self._around, traced=False)
        self.close, self.add = self._surround.close, self._surround.add
        self._looks = False
        self.made: deque[OutermostCall] = deque(maxlen=CALLS_AT_MOST)

    def _around(
        self, model: Module, forward: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> Any:
        output = forward(*args, **kwargs)
        if torch.is_grad_enabled() and not self._looks:
            call = OutermostCall(weakref.ref(model), args, kwargs)
            for place, tensor in enumerate(tensors_in(output)):
                if tensor.grad_fn is not None:
                    tensor.register_hook(_keeper(call, place))
            self.made.append(call)
        return output

    def look(self, *, in_backward: bool, repeat: bool) -> tuple[OutermostCall, str] | None:
        """Return the call that went wrong, and a description of its first part that is not finite.

        ``in_backward``: the loss was finite. ``repeat``: whether this rank can call a model alone.
        """
        places = [_input]
        if repeat:
            places += [_output, _gradient] if in_backward else [_output]
        with self._looking():
            for place, call in product(places, self.made):
                found = place(call)
                if found:
                    return call, found
        return None

    @contextmanager
    def _looking(self) -> Iterator[None]:
        drawn, self._looks = random_streams.read(), True
        try:
            with torch.enable_grad():
                yield
        finally:
            self._looks = False
            random_streams.write(drawn)


def _keeper(call: OutermostCall, place: int) -> Callable[[Tensor], None]:
    def keep(gradient: Tensor) -> None:
        call.gradients[place] = gradient

    return keep


def _input(call: OutermostCall) -> str:
    inputs = tensors_in((call.args, call.kwargs))
    return "" if all(map(is_finite, inputs)) else "the input of the model"


def _output(call: OutermostCall) -> str:
    """Repeat the forward; return the first layer whose output is not finite, or ""."""
    found: list[str] = []

    def ran(name: str, output: object) -> None:
        if not found and not all(map(is_finite, tensors_in(output))):
            found.append(f"the output of {name}")

    with _reported(call, ran):
        call.repeat()
    return "".join(found)


def _gradient(call: OutermostCall) -> str:
    """Repeat the backward; return the first layer whose gradient is not finite, or ""."""
    if not call.gradients:
        return ""
    if not all(map(is_finite, call.gradients.values())):
        return "the gradient of the model's output, which the loss gives"
    found: list[str] = []

    def check(name: str, gradient: Tensor) -> None:
        if not found and not is_finite(gradient):
            found.append(f"the gradient of {name}")

    def ran(name: str, output: object) -> None:
        for tensor in tensors_in(output):
            if tensor.grad_fn is not None:
                tensor.register_hook(lambda gradient: check(f"the output of {name}", gradient))

    with _reported(call, ran):
        outputs = call.repeat()
    model = call.model()
    every = [] if model is None else model.named_parameters()
    named = [(name, parameter) for name, parameter in every if parameter.requires_grad]
    given = [place for place in call.gradients if place < len(outputs)]
    gradients = torch.autograd.grad(
        [outputs[place] for place in given],
        [parameter for _, parameter in named],
        [call.gradients[place].to(outputs[place].dtype) for place in given],
        allow_unused=True,
    )
    for (name, _), gradient in zip(reversed(named), reversed(gradients), strict=True):
        if gradient is not None:
            check(name, gradient)
    return "".join(found)


@contextmanager
def _reported(call: OutermostCall, ran: Callable[[str, object], None]) -> Iterator[None]:
    """Call ``ran(name, output)`` after each layer of the model."""
    model = call.model()
    handles = [
        part.register_forward_hook(hook_of(name, part, ran))
        for name, part in (() if model is None else model.named_modules())
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def hook_of(name: str, part: Module, ran: Callable[[str, object], None]) -> Callable[..., None]:
    """Return a forward hook that calls ``ran(name, output)``, with the name in words."""
    words = f"{name or 'the model'} ({type(part).__name__})"

    def hook(module: Module, inputs: object, output: object) -> None:
        ran(words, output)

    return hook


def tensors_in(thing: object) -> list[Tensor]:
    found: list[Tensor] = []
    collect(thing, found)
    return found


def is_finite(tensor: Tensor) -> bool:
    """Whether no element is NaN or infinite."""
    values = local_part(tensor.detach())
    values = values.coalesce().values() if values.is_sparse else values
    return bool(torch.isfinite(values).all())


MAX_NOTES = 1 << 16


class LayerNotes:
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
    return torch.isfinite(local_part(tensor.detach())).all()
