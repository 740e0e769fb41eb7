"""A batch on its way from a loader into a backward, known by its tensors."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from torchbus._batches.nested import collect
from torchbus._batches.share import Share
from torchbus._compat.autograd import use_count


class Origin:
    """A pass that batches come from, and what is known about it.

    ``length``: its number of batches, if known. ``evaluates``: why it counts as evaluation, or "".
    ``trains``: gradients were on when it began. ``alike``: every rank gets the same batches.
    ``ragged``: the ranks' shares will weigh differently in some steps. ``share``: that of the batch
    on its way. ``fed``: a batch of it has fed a backward. ``ahead``: its batches are taken before
    earlier ones are used. ``threaded``: another thread takes them. ``kept``: a list, or
    itertools.cycle, gives them again. ``ended``: the loop has exhausted its iterator.
    """

    __slots__ = (
        "__weakref__",
        "ahead",
        "alike",
        "ended",
        "evaluates",
        "fed",
        "iterator",
        "kept",
        "length",
        "loader",
        "name",
        "ragged",
        "share",
        "threaded",
        "trains",
    )

    def __init__(self, name: str = "batches that the script makes") -> None:
        self.name = name
        self.loader: weakref.ref[DataLoader[object]] | None = None
        self.iterator: weakref.ref[Counting] | None = None
        self.length: int | None = None
        self.share: Share | None = None
        self.evaluates = ""
        self.trains = torch.is_grad_enabled()
        self.alike = self.ragged = self.fed = self.ahead = self.threaded = self.kept = (
            self.ended
        ) = False

    def itself(self) -> object:
        return self

    def source(self) -> object:
        """Return what gives such batches in another pass too: the loader, while it lives."""
        loader = None if self.loader is None else self.loader()
        return self if loader is None else loader

    @property
    def is_over(self) -> bool:
        """Whether no more batches come: the loop has exhausted the iterator, or dropped it."""
        return self.ended or (self.iterator is not None and self.iterator() is None)


class Counting(Protocol):
    """The iterator of a pass. ``taken``: so many batches came from it."""

    origin: Origin
    taken: int

    def find_last(self) -> None: ...


class Taken:
    """A batch that the loop was handed.

    It is the ``number``-th of its pass, from 1, and the ``serial``-th of all. ``rows``: its number
    of samples, by dim 0 of its first tensor. ``key``: that tensor's id, the same if the data set
    gives the batch again.
    """

    __slots__ = ("_tensors", "key", "number", "origin", "rows", "serial", "share")

    def __init__(self, origin: Origin, number: int, share: Share | None, batch: object) -> None:
        self.origin, self.number, self.share, self.serial = origin, number, share, 0
        parts = batch if type(batch) is list or type(batch) is tuple else (batch,)
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
        """The tensors of the batch that are alive."""
        return [
            tensor for tensor in (reference() for reference in self._tensors) if tensor is not None
        ]

    @property
    def lives(self) -> bool:
        """Whether a tensor of it is alive: in the loop, a wrapper or a graph."""
        return any(tensor() is not None for tensor in self._tensors)

    def storages(self) -> set[int]:
        """Return where the memory of its living tensors begins. Views of them have the same."""
        living = [
            tensor for tensor in (reference() for reference in self._tensors) if tensor is not None
        ]
        return {tensor.untyped_storage().data_ptr() for tensor in living if is_plain(tensor)}

    @property
    def is_in_graph(self) -> bool:
        """Whether a graph has saved a tensor of it (or a view of one is alive)."""
        return any(map(_is_saved, self.tensors))

    @property
    def is_last(self) -> bool:
        """Whether it is known to be the last one of its pass."""
        return self.number == self.origin.length


def _is_saved(tensor: Tensor) -> bool:
    # the node that gathers a tensor's gradient holds it too, as long as an old loss lives
    return use_count(tensor) > 1 + (tensor.requires_grad and tensor.is_leaf)


def is_plain(tensor: Tensor) -> bool:
    """Whether the tensor is in memory, in one piece."""
    return tensor.layout is torch.strided and not tensor.is_nested and tensor.numel() > 0


def share_of(feeding: Sequence[Taken]) -> Share | None:
    """Return the share of the batch that was taken last. A batch of evaluation is whole."""
    shared = [one for one in feeding if one.share is not None]
    if shared:
        return max(shared, key=lambda one: one.serial).share
    return Share() if only_evaluate(feeding) else None


def only_evaluate(feeding: Sequence[Taken]) -> bool:
    return bool(feeding) and all(one.origin.evaluates for one in feeding)


def first_of_each_pass(found: Sequence[Taken]) -> list[Taken]:
    """Return the first batch of each pass.

    A wrapper may hold views of what it has fetched ahead; they look like a graph's.
    """
    first: dict[int, Taken] = {}
    for one in found:
        known = first.get(id(one.origin))
        if known is None or one.number < known.number:
            first[id(one.origin)] = one
    return list(first.values())


def without_gone(fresh: Sequence[Taken]) -> list[Taken]:
    """Drop batches that are gone, but for two of each pass: they show that there were several."""
    kept: list[Taken] = []
    gone: dict[int, int] = {}
    for one in reversed(fresh):
        if not one.lives:
            gone[id(one.origin)] = gone.get(id(one.origin), 0) + 1
        if one.lives or gone[id(one.origin)] <= 2:
            kept.append(one)
    return kept[::-1]
