"""Moves batches and models to this rank's device."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torchbus import objects
from torchbus.bus.base import hookimpl
from torchbus.tree import leaves, map_leaves

from torchbus_device import accelerators

if TYPE_CHECKING:
    from torchbus.patches.loaders import LoaderIterator
    from torchbus.runtime.context import Context


class Moved(NamedTuple):
    """A batch on the host, and its copy on the device, which is complete after the event."""

    batch: object
    copy: object
    event: accelerators.Event


class BatchesToDevice:
    """Moves batches to this rank's device, so that ``.to(device)`` is unnecessary.

    With ``prefetch``, batches are copied from pinned memory, on a separate stream. After a
    backward, the next batch is copied if a worker has made it, so that the copy runs during the
    step.
    """

    def __init__(self, session: Context) -> None:
        self._session = session
        self._ahead = session.options["prefetch"] > 0 and accelerators.has_streams(session.device)
        self._stream: object = None
        self._next: Moved | None = None
        self._latest: tuple[weakref.ref[LoaderIterator], int] | None = None

    @hookimpl
    def batch_ready(
        self, loader: DataLoader[object], batch: object, iterator: LoaderIterator
    ) -> object:
        if not self._session.captures(loader):
            return None
        if not self._ahead:
            return to_device(batch, self._session.device)
        moved, self._next = self._next, None
        if moved is None or moved.batch is not batch:
            moved = self._move(batch)
        self._latest = weakref.ref(iterator), threading.get_ident()
        return self._handed_over(moved)

    @hookimpl
    def after_backward(self) -> None:
        """Move the next batch if it is ready, and if the loop reads batches in this thread."""
        if self._latest is None or self._next is not None:
            return
        iterator, thread = self._latest[0](), self._latest[1]
        if iterator is None or thread != threading.get_ident():
            return
        batch = iterator.read_ahead()
        if batch is not None:
            self._next = self._move(batch)

    def _move(self, batch: object) -> Moved:
        if self._stream is None:
            self._stream = accelerators.new_stream(self._session.device)
        with accelerators.on_stream(self._stream):
            copy = to_device(batch, self._session.device, pin=True)
            return Moved(batch, copy, accelerators.recorded(self._session.device))

    def _handed_over(self, moved: Moved) -> object:
        """Let the loop's stream wait for the copy, and hold its memory until the loop is done."""
        stream = accelerators.current_stream(self._session.device)
        stream.wait_event(moved.event)
        for leaf in leaves(moved.copy):
            if isinstance(leaf, Tensor) and leaf.device.type == self._session.device.type:
                leaf.record_stream(stream)
        return moved.copy


def to_device(value: object, device: torch.device, pin: bool = False) -> object:
    """Return the same batch with its tensors on the device.

    Objects of other classes are moved by their ``to`` method. With ``pin``, tensors are copied from
    pinned memory, and the host does not wait.
    """

    def moved(leaf: Any) -> object:
        if isinstance(leaf, Tensor):
            pinned = pin and leaf.device.type == "cpu" and leaf.layout == torch.strided
            source = leaf.pin_memory() if pinned else leaf
            return source.to(device, non_blocking=pinned or leaf.is_pinned())
        return leaf.to(device) if _has_to(leaf) else leaf

    return map_leaves(value, moved)


def _has_to(leaf: object) -> bool:
    """Whether an object has a ``to`` method, such as a PackedSequence or a graph."""
    return not isinstance(leaf, type) and callable(getattr(leaf, "to", None))


class ModelsToDevice:
    """Moves models from the CPU to this rank's device, when an optimizer or a first call uses them.

    A model that is partly on another device is not moved, but an optimizer's CPU parameters are.
    Parameters stay the same objects, so optimizers still hold them.
    """

    def __init__(self, session: Context) -> None:
        self._session = session
        self._moved: weakref.WeakSet[Module] = weakref.WeakSet()

    @hookimpl
    def session_start(self, session: Context) -> None:
        """On one rank, make the device that ``devices=[1]`` names the current one, for ``.cuda()``.

        Of several ranks, each sees only one device.
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
        """Move models and state before any other plugin gets the parameters."""
        if optimizer is None or self._session.captures(optimizer):
            for model in objects.models_of(parameters):
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
    """Move CPU tensors and their gradients to the device in place; they stay the same objects."""
    for tensor in tensors:
        if tensor.device.type == "cpu":
            gradient, tensor.grad = tensor.grad, None
            _give(tensor, tensor.detach().to(device))
            tensor.grad = None if gradient is None else gradient.to(device)


def _give(tensor: Tensor, values: Tensor) -> None:
    """Replace a tensor's data. Some devices of other packages need a swap of the tensors."""
    try:
        tensor.data = values
    except RuntimeError:
        accelerators.swap_contents(tensor, values.requires_grad_(tensor.requires_grad))


def _move_state(optimizer: Optimizer, device: torch.device) -> None:
    """Move moments to their parameters' device; step counts stay where torch puts them."""
    for parameter, state in optimizer.state.items():
        for value in state.values():
            if isinstance(value, Tensor) and value.shape == parameter.shape and value.dim():
                move_data([value], device)


def always(session: Context) -> list[object]:
    """Return the plugins that move batches and models, for a session on an accelerator."""
    if session.device.type == "cpu":
        return []
    plugins: list[object] = [BatchesToDevice(session)]
    if session.world_size > 1 or _was_asked_for(session):
        plugins.append(ModelsToDevice(session))
    return plugins


def _was_asked_for(session: Context) -> bool:
    """Whether the call names devices. If not, the script may intend to use the CPU."""
    return any(session.options[name] != "auto" for name in ("devices", "accelerator"))
