"""Moves models that the script left on the CPU to the rank's device."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from torchbus._builtin.to_device import BatchesToDevice
from torchbus._bus.markers import hookimpl
from torchbus._compat import accelerators
from torchbus._session import inventory

if TYPE_CHECKING:
    from torchbus._session.context import Context


class ModelsToDevice:
    """Moves a model whose tensors are all on the CPU, as its optimizer or its first call shows it.

    Parameters stay the same objects, so optimizers keep them. A script that moves its models itself
    has done so by then.
    """

    def __init__(self, session: Context) -> None:
        self._session = session
        self._moved: weakref.WeakSet[Module] = weakref.WeakSet()

    @hookimpl
    def session_start(self, session: Context) -> None:
        """Make the device that ``devices=[1]`` names the current one: ``.cuda()`` means that.

        Of several ranks, each sees its own device only.
        """
        device = session.device
        if session.world_size == 1 and device.index:
            before = accelerators.current_device(device.type)
            accelerators.set_device(device)
            session.on_close.callback(accelerators.set_device, before)

    @hookimpl(wrapper=True)
    def parameters_added(
        self, optimizer: Optimizer | None, parameters: list[Tensor]
    ) -> Generator[None, object, object]:
        """Before any other plugin looks at them."""
        if optimizer is None or self._session.captures(optimizer):
            for model in inventory.models_of(parameters):
                self._move(model)
            move_data(parameters, self._session.device)
            if optimizer is not None:
                _move_state(optimizer, self._session.device)
        return (yield)

    @hookimpl(wrapper=True)
    def model_found(self, model: Module) -> Generator[None, object, object]:
        if self._session.captures(model):
            self._move(model)
        return (yield)

    @hookimpl
    def describe(self, thing: object) -> str | None:
        moved = isinstance(thing, Module) and thing in self._moved
        return f"moved to {self._session.device}" if moved else None

    def _move(self, model: Module) -> None:
        tensors = [*model.parameters(), *model.buffers()]
        if tensors and all(tensor.device.type == "cpu" for tensor in tensors):
            move_data(model.parameters(), self._session.device)
            model.to(self._session.device)
            self._moved.add(model)


def move_data(tensors: Iterable[Tensor], device: torch.device) -> None:
    """Give tensors of the CPU their values on the device; they stay the same objects."""
    for tensor in tensors:
        if tensor.device.type == "cpu":
            gradient, tensor.grad = tensor.grad, None
            _give(tensor, tensor.detach().to(device))
            tensor.grad = None if gradient is None else gradient.to(device)


def _give(tensor: Tensor, values: Tensor) -> None:
    """Devices of other packages than torch can't take the place of a CPU's data: swap instead."""
    try:
        tensor.data = values
    except RuntimeError:
        accelerators.swap_contents(tensor, values.requires_grad_(tensor.requires_grad))


def _move_state(optimizer: Optimizer, device: torch.device) -> None:
    """Moments follow their parameters; counts of steps stay where torch keeps them."""
    for parameter, state in optimizer.state.items():
        for value in state.values():
            if isinstance(value, Tensor) and value.shape == parameter.shape and value.dim():
                move_data([value], device)


def always(session: Context) -> list[object]:
    """Return what moves batches and models, for a session on an accelerator."""
    if session.device.type == "cpu":
        return []
    plugins: list[object] = [BatchesToDevice(session)]
    if session.world_size > 1 or _was_asked_for(session):
        plugins.append(ModelsToDevice(session))
    return plugins


def _was_asked_for(session: Context) -> bool:
    """Whether the call names a device. If not, a script may mean the CPU by saying nothing."""
    return any(session.options[name] != "auto" for name in ("devices", "accelerator"))
