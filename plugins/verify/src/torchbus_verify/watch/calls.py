"""Records the calls of models in a step: inputs, random states, gradients of the outputs.

With this record, another rank can repeat the call, and compute the same gradients.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils.hooks import RemovableHandle
from torchbus.plugin import Unsupported
from torchbus.tree import leaves, map_tensors

from torchbus_strategy import random_streams
from torchbus_verify._compat import COLLECTIVES, DispatchMode, current_graph_task_id, is_compiled


@dataclass
class RecordedCall:
    """One outermost call of a model.

    ``module`` is the index in the list of modules, which is equal on all ranks. ``gradients`` are
    those of the returned tensors, in order, or None for a tensor that the loss does not need.
    """

    module: int
    inputs: tuple[object, ...]
    random: dict[str, object]
    buffers: dict[str, Tensor]
    autocast: torch.dtype | None
    named: dict[str, object] = field(default_factory=dict)
    gradients: list[Tensor | None] = field(default_factory=list)

    def on(self, device: torch.device | str) -> RecordedCall:
        """Return a copy on another device. Random states stay on the host."""
        move: Callable[[Any], Any] = lambda value: map_tensors(value, lambda one: one.to(device))  # noqa: E731
        return RecordedCall(
            self.module,
            move(self.inputs),
            self.random,
            move(self.buffers),
            self.autocast,
            move(self.named),
            move(self.gradients),
        )


class CallRecorder:
    """Records the outermost calls of trained models, on one rank, during a checked step.

    ``modules()`` returns the models and their submodules. If there are none yet, it is called again
    at the first call of a module. There are no hooks if a model is compiled, because they would
    cause a recompilation.
    """

    def __init__(self, modules: Callable[[], list[Module]]) -> None:
        self._modules = modules
        self.modules = modules()
        self._places: dict[int, int] = {}
        self._made: list[RecordedCall] = []
        self._inside: list[Module] = []
        self.terms = 1
        self.autocast: set[torch.dtype] = set()
        compiled = next((one for one in self.modules if is_compiled(one)), None)
        self.cannot = "" if compiled is None else f"{type(compiled).__name__} is compiled"
        """Why the calls can't be repeated; "" if they can."""
        self._hooks = [] if self.cannot else self._listen()

    def _listen(self) -> list[RemovableHandle]:
        return [
            register_module_forward_pre_hook(self._begin),
            register_module_forward_hook(self._end, with_kwargs=True, always_call=True),
        ]

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._made, self._inside, self.modules, self._places = [], [], [], {}

    def of_backward(self) -> list[RecordedCall]:
        """Return the calls that the backward went through, on the host."""
        return [one.on("cpu") for one in self._made if any(g is not None for g in one.gradients)]

    def drop_gradients(self) -> None:
        """Clear the record before the next backward."""
        for one in self._made:
            one.gradients = [None] * len(one.gradients)

    def _place(self, module: Module) -> int | None:
        if not self._places:
            self.modules = self.modules or self._modules()
            self._places = {id(one): place for place, one in enumerate(self.modules)}
        return self._places.get(id(module))

    def _begin(self, module: Module, inputs: tuple[object, ...]) -> None:
        if self._inside or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return
        if current_graph_task_id() != -1:  # activation checkpointing repeats part of a call
            return
        place = self._place(module)
        if place is None:
            return
        self._inside.append(module)
        self._made.append(
            RecordedCall(
                place,
                map_tensors(inputs, _copied),
                random_streams.read(),
                {name: one.detach().clone() for name, one in module.named_buffers()},
                _autocast(module),
            )
        )
        self.autocast |= {self._made[-1].autocast or torch.float64}
        sizes = [one.numel() for one in leaves(inputs) if isinstance(one, Tensor)]
        self.terms = max([self.terms, *sizes])

    def _end(
        self, module: Module, inputs: object, named: dict[str, object], outputs: object
    ) -> None:
        if not self._inside or self._inside[-1] is not module:
            return
        self._inside.pop()
        made = self._made[-1]
        made.named = map_tensors(named, _copied)
        made.gradients = [None] * len(differentiable(outputs))
        for place, one in enumerate(differentiable(outputs)):
            one.register_hook(_noting(made, place))


def _noting(made: RecordedCall, place: int) -> Callable[[Tensor], None]:
    def note(gradient: Tensor) -> None:
        before = made.gradients[place]
        made.gradients[place] = gradient.detach() if before is None else before + gradient.detach()

    return note


def differentiable(outputs: object) -> list[Tensor]:
    """Return the tensors with a graph in a call's outputs, each once."""
    found = [one for one in leaves(outputs) if isinstance(one, Tensor) and one.requires_grad]
    return list({id(one): one for one in found}.values())


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _autocast(module: Module) -> torch.dtype | None:
    kind = next((one.device.type for one in module.parameters()), "cpu")
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


Gradients = dict[str, Tensor]


def gradients(
    calls: Sequence[RecordedCall], modules: Sequence[Module], names: dict[int, str]
) -> Gradients:
    """Return the gradients of parameters from these calls, by the ``names`` of parameter ids."""
    total: Gradients = {}
    mode: Any = BlockedCollectives()  # type: ignore[no-untyped-call]
    with _as_before(modules), mode:
        for call in calls:
            for name, one in _of(call, modules[call.module], names).items():
                total[name] = total[name] + dense(one) if name in total else dense(one)
    return total


def _of(call: RecordedCall, module: Module, names: dict[int, str]) -> Gradients:
    parameters = {
        name: one.detach().requires_grad_(one.requires_grad)
        for name, one in module.named_parameters()
    }
    device = next(iter(parameters.values())).device
    call = call.on(device)
    random_streams.write(call.random)
    with torch.enable_grad(), _in_autocast(call, device):
        outputs = torch.func.functional_call(
            module, {**parameters, **call.buffers}, call.inputs, call.named
        )
        wanted = {
            names[id(one)]: parameters[name]
            for name, one in module.named_parameters()
            if id(one) in names
        }
        return _derived(differentiable(outputs), call.gradients, wanted)


def _derived(
    outputs: Sequence[Tensor], gradients: Sequence[Tensor | None], wanted: Gradients
) -> Gradients:
    """Return the parameters' gradients, from the gradients of the outputs."""
    pairs = zip(outputs, gradients, strict=True)
    reached = [(one, gradient) for one, gradient in pairs if gradient is not None]
    found = torch.autograd.grad(
        [one for one, _ in reached],
        list(wanted.values()),
        [gradient for _, gradient in reached],
        allow_unused=True,
    )
    return {name: one for name, one in zip(wanted, found, strict=True) if one is not None}


def _in_autocast(call: RecordedCall, device: torch.device) -> Any:
    return nullcontext() if call.autocast is None else torch.autocast(device.type, call.autocast)


class BlockedCollectives(DispatchMode):
    """Raises Unsupported for collectives inside, in which the other ranks would not take part."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in COLLECTIVES:
            raise Unsupported("a model's forward communicates with other ranks")
        return func(*args, **(kwargs or {}))


@contextmanager
def _as_before(modules: Sequence[Module]) -> Iterator[None]:
    """Restore generators and module attributes, such as caches, that a forward may set."""
    states, held = random_streams.read(), [_held(one) for one in modules]
    try:
        yield
    finally:
        random_streams.write(states)
        for module, attributes in zip(modules, held, strict=True):
            vars(module).clear()
            vars(module).update({name: _filled(*both) for name, both in attributes.items()})


def _held(module: Module) -> dict[str, tuple[object, object]]:
    """Return the attributes, with the contents of containers."""
    return {
        name: (value, copy.copy(value) if isinstance(value, list | dict | set) else None)
        for name, value in vars(module).items()
    }


def _filled(value: Any, content: Any) -> Any:
    """Restore the contents of a container."""
    if content is not None:
        value.clear()
        value.extend(content) if isinstance(value, list) else value.update(content)
    return value


def dense(gradient: Tensor) -> Tensor:
    """Return a dense gradient: an embedding's may be sparse."""
    return gradient if gradient.layout is torch.strided else gradient.to_dense()
