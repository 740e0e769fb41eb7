"""Moves batches of captured loaders to the rank's device, one batch ahead."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from torchbus._batches.nested import leaves, map_leaves
from torchbus._bus.markers import hookimpl
from torchbus._compat import accelerators

if TYPE_CHECKING:
    from torchbus._seams.loader import LoaderIterator
    from torchbus._session.context import Context


class Moved(NamedTuple):
    """A batch of the host, and its copy, which is whole once the event is done."""

    batch: object
    copy: object
    event: accelerators.Event


class BatchesToDevice:
    """Makes ``.to(device)`` in the loop unnecessary, and free of cost.

    Batches are copied from pinned memory, on a stream of their own. After a backward, the next one
    is copied if a worker has made it: the copy runs beside the step.
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
        """Move the next batch, if it is there and the loop reads it in this thread."""
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
        """Let the loop's stream wait for the copy, and keep its memory until the loop is done."""
        stream = accelerators.current_stream(self._session.device)
        stream.wait_event(moved.event)
        for leaf in leaves(moved.copy):
            if isinstance(leaf, Tensor) and leaf.device.type == self._session.device.type:
                leaf.record_stream(stream)
        return moved.copy


def to_device(value: object, device: torch.device, pin: bool = False) -> object:
    """Return the same batch with its tensors on the device.

    Objects of other classes are moved by their own ``to``. ``pin``: from pinned memory, for which
    the host does not wait.
    """

    def moved(leaf: Any) -> object:
        if isinstance(leaf, Tensor):
            pinned = pin and leaf.device.type == "cpu" and leaf.layout == torch.strided
            source = leaf.pin_memory() if pinned else leaf
            return source.to(device, non_blocking=pinned or leaf.is_pinned())
        return leaf.to(device) if _has_to(leaf) else leaf

    return map_leaves(value, moved)


def _has_to(leaf: object) -> bool:
    """Whether it is a batch of a class of its own, such as a PackedSequence or a graph."""
    return not isinstance(leaf, type) and callable(getattr(leaf, "to", None))
