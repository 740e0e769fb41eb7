"""A batch on its way from a loader into a backward, known by its tensors."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchbus._batches.share import Share

if TYPE_CHECKING:
    from torchbus._seams.loader import LoaderIterator

TENSORS_AT_MOST = 16
Count = Callable[[Tensor], int]
_holders: Count | None = getattr(Tensor, "_use_count", None)  # torch's own count: one for Python, one for each graph or view


class Origin:
    """A pass that batches come from, and what is known about it.

    ``length``: its number of batches, where that is known. ``evaluates``: why it counts as evaluation, "" if it does not. ``trains``: gradients
    were on when it began. ``alike``: every rank gets the same batches. ``ragged``: the ranks' shares will not weigh the same in all steps.
    ``share``: that of the batch that is on its way. ``fed``: a batch of it has fed a backward. ``ahead``: its batches are taken before those
    taken earlier are used. ``threaded``: another thread takes them. ``kept``: a list, or itertools.cycle, gives them again. ``ended``: the
    loop has exhausted its iterator.
    """

    __slots__ = (
        "__weakref__", "ahead", "alike", "ended", "evaluates", "fed", "iterator", "kept", "length", "loader", "name", "ragged", "share",
        "threaded", "trains",
    )  # fmt: skip

    def __init__(self, name: str = "batches that the script makes") -> None:
        self.name = name
        self.loader: weakref.ref[Any] | None = None
        self.iterator: weakref.ref[LoaderIterator] | None = None
        self.length: int | None = None
        self.share: Share | None = None
        self.evaluates = ""
        self.trains = torch.is_grad_enabled()
        self.alike = self.ragged = self.fed = self.ahead = self.threaded = self.kept = self.ended = False

    def itself(self) -> object:
        return self

    def source(self) -> object:
        """What gives such batches in another pass, too: the loader, while it is there."""
        loader = None if self.loader is None else self.loader()
        return self if loader is None else loader

    @property
    def is_over(self) -> bool:
        """Whether no more batches come: the loop has exhausted the iterator, or dropped it."""
        return self.ended or (self.iterator is not None and self.iterator() is None)


class Taken:
    """A batch that the loop was handed: the ``number``-th of its pass, from 1, and the ``serial``-th of all. ``rows``: samples in it, by dim 0
    of its first tensor. ``key``: that tensor's id, the same for a batch that the data set gives again."""

    __slots__ = ("_tensors", "key", "number", "origin", "rows", "serial", "share")

    def __init__(self, origin: Origin, number: int, share: Share | None, batch: Any) -> None:
        self.origin, self.number, self.share, self.serial = origin, number, share, 0
        parts = batch if type(batch) in (list, tuple) else (batch,)
        found = [part for part in parts if isinstance(part, Tensor)]
        if len(found) != len(parts):
            found = []
            collect(batch, found)
        shape = found[0].shape if found and not found[0].is_nested else ()
        self.rows = shape[0] if shape else 1
        self.key = id(found[0]) if found else id(self)
        self._tensors = [weakref.ref(tensor) for tensor in found]

    @property
    def tensors(self) -> list[Tensor]:
        """Those that somebody still holds."""
        return [tensor for tensor in (reference() for reference in self._tensors) if tensor is not None]

    @property
    def lives(self) -> bool:
        """Whether somebody still holds a tensor of it: the loop, a wrapper or a graph."""
        return any(tensor() is not None for tensor in self._tensors)

    def storages(self) -> set[int]:
        """Where the memory of its living tensors begins: views of them have the same."""
        living = [tensor for tensor in (reference() for reference in self._tensors) if tensor is not None]
        return {tensor.untyped_storage().data_ptr() for tensor in living if is_plain(tensor)}

    @property
    def is_in_graph(self) -> bool:
        """Whether a graph has saved a tensor of it (or somebody has a view of one)."""
        if _holders is None:
            return False
        return any(tensor is not None and _holders(tensor) > 1 for tensor in (reference() for reference in self._tensors))

    @property
    def is_last(self) -> bool:
        """Whether it is the last one of its pass, as far as that is known."""
        return self.number == self.origin.length


def is_plain(tensor: Tensor) -> bool:
    """Whether it is in memory, in one piece."""
    return tensor.layout is torch.strided and not tensor.is_nested and tensor.numel() > 0


def collect(value: Any, found: list[Tensor], depth: int = 4) -> None:
    """The tensors in a batch: in lists, tuples, mappings, and the attributes of other objects."""
    if isinstance(value, Tensor):
        found.append(value)
    elif depth and len(found) < TENSORS_AT_MOST and not isinstance(value, (str, bytes, int, float)):
        for part in _parts(value):
            collect(part, found, depth - 1)


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple)):
        return value[:TENSORS_AT_MOST]
    attributes = getattr(value, "__dict__", None)
    slots = getattr(type(value), "__slots__", ())
    return [*(attributes or {}).values(), *[getattr(value, name, None) for name in ([slots] if isinstance(slots, str) else slots)]]


def first_of_each_pass(found: Sequence[Taken]) -> list[Taken]:
    """A wrapper may hold views of what it has fetched ahead, which look like a graph's."""
    first: dict[int, Taken] = {}
    for one in found:
        known = first.get(id(one.origin))
        if known is None or one.number < known.number:
            first[id(one.origin)] = one
    return list(first.values())


def without_gone(fresh: Sequence[Taken]) -> list[Taken]:
    """Of those that are gone, two of each pass are enough to see that there were several."""
    kept: list[Taken] = []
    gone: dict[int, int] = {}
    for one in reversed(fresh):
        if not one.lives:
            gone[id(one.origin)] = gone.get(id(one.origin), 0) + 1
        if one.lives or gone[id(one.origin)] <= 2:
            kept.append(one)
    return kept[::-1]
