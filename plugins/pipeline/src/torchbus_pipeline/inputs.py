"""The inputs of a chain of layers: its input, and each layer's extra arguments."""

from __future__ import annotations

import copy
import enum
import types
from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import Module
from torchbus.compat.torch_names import version
from torchbus.plugin import Unsupported, an
from torchbus.tree import leaves, map_tensors

T = TypeVar("T")
SHARED_TYPES = (
    *(Tensor, Module, torch.Generator, torch.dtype, torch.device, torch.Size, enum.Enum, type),
    *(str, bytes, int, float, complex, types.NoneType),
    *(types.FunctionType, types.MethodType, types.BuiltinFunctionType),
)
"""The types of objects that all micro-batches share."""
WRITTEN = (
    "{} of {} under strategy='pipeline': layers have written to it, each micro-batch's to a copy"
    " on some rank, so it does not hold what one process would have in it. If it is a"
    " cache of keys and values, pass use_cache=False (also to generate()); else use strategy='ddp'"
)
CONTAINER = (
    "{} writes to {} that it gets besides its input: under strategy='pipeline' layers compute on"
    " other ranks, a micro-batch at a time, and the loop would not find it there. Return it from"
    " the last layer, or use strategy='ddp'"
)
IN_PLACE = (
    "{} writes into tensors of the {} that it gets besides its input: under strategy='pipeline' all"
    " micro-batches would write to the same ones. Pass use_cache=False if it is a cache, or use"
    " strategy='ddp'"
)
NO_COPY = (
    "layers get {} besides their input, which strategy='pipeline' can't copy for each micro-batch"
    " ({}): leave it out, or use strategy='ddp'"
)


READ = "__getattribute__"


def mutable_in(value: object) -> list[object]:
    """Return the containers and objects that a layer could write to, without their contents."""
    if isinstance(value, SHARED_TYPES):
        return []
    if isinstance(value, tuple):
        return [one for part in value for one in mutable_in(part)]
    return [value]


def held_in(value: object) -> list[object]:
    """Return the values of ``SHARED_TYPES`` in a nested value. Each container is read once."""
    return list(_held(value, set()))


def _held(value: object, seen: set[int]) -> Iterator[object]:
    if isinstance(value, SHARED_TYPES):
        yield value
    elif id(value) not in seen:
        seen.add(id(value))
        parts = value if isinstance(value, list | tuple | set | frozenset) else ()
        named = value if isinstance(value, dict) else getattr(value, "__dict__", {})
        for part in (*parts, *named, *named.values()):
            yield from _held(part, seen)


def copied(value: T, known: dict[int, object]) -> T:
    """Return a deep copy that shares only ``SHARED_TYPES``. ``known`` has earlier copies by id."""
    for one in held_in(value):
        if isinstance(one, Tensor | Module | torch.Generator):
            known.setdefault(id(one), one)
    try:
        return copy.deepcopy(value, known)
    except Exception as error:
        kinds = ", ".join(type(one).__name__ for one in mutable_in(value))
        raise Unsupported(NO_COPY.format(kinds, error)) from error


class LayerArgument:
    """A layer's copy of an object that it could write to, and the loop's original."""

    def __init__(self, original: object, copy: object) -> None:
        self.original, self._copy = original, copy
        self._before, self._versions = held_in(copy), _versions(copy)

    def is_written(self, layer: str) -> bool:
        """Whether the layer has written to its copy.

        Raises Unsupported if the write was to a tensor, list, dict or set, because the loop can't
        be prevented from reading such an object.
        """
        name, versions = type(self.original).__name__, _versions(self._copy)
        if any(versions.get(key, now) != now for key, now in self._versions.items()):
            raise Unsupported(IN_PLACE.format(layer, name))
        after = held_in(self._copy)
        if len(after) == len(self._before) and all(map(_is_same, after, self._before)):
            return False
        if isinstance(self.original, list | dict | set):
            raise Unsupported(CONTAINER.format(layer, an(name)))
        return True


def _is_same(one: object, other: object) -> bool:
    return one is other or (not isinstance(one, Tensor) and one == other)


def _versions(value: object) -> dict[int, int]:
    tensors = [one for one in held_in(value) if isinstance(one, Tensor)]
    return {id(one): version(one) for one in tensors if not one.is_inference()}


def refuse_reading(written: object, model: str) -> None:
    """Make every further use of an object raise Unsupported."""
    cls = type(written)
    if READ in vars(cls):
        return
    message = WRITTEN.format("{}", f"the {cls.__name__} that the layers of {model} get")

    def read(self: object, name: str) -> object:
        if name.startswith("__"):
            return object.__getattribute__(self, name)
        raise Unsupported(message.format(name))

    made = type(cls.__name__, (cls,), {"__slots__": (), READ: read})
    object.__setattr__(written, "__class__", made)


Extra = tuple[tuple[object, ...], Mapping[str, object]]
NO_EXTRA: Extra = ((), {})


class ChainInputs(NamedTuple):
    """The inputs of a chain of layers.

    ``x`` has samples in dim 0, and ``extras`` are each layer's other arguments. ``by_rows`` has the
    places, among all leaves of the extras, of tensors with a row for each sample. ``originals`` are
    the containers and objects that each layer gets from the loop, of which ``extras`` has copies.
    """

    x: Tensor
    extras: list[Extra]
    by_rows: frozenset[int]
    originals: list[list[object]]

    def part(self, index: int, count: int) -> Tensor:
        """Return the input of one micro-batch."""
        return self.x.detach().tensor_split(count)[index]

    def extra(self, layer: int, index: int, count: int, known: dict[int, object]) -> Extra:
        """Return the extra arguments of a layer for one micro-batch.

        ``known`` has the copies, for this micro-batch, of objects that layers could write to.
        """
        before = sum(len(leaves(one)) for one in self.extras[:layer])
        numbers = iter(
            before + place
            for place, leaf in enumerate(leaves(self.extras[layer]))
            if isinstance(leaf, Tensor)
        )

        def take(tensor: Tensor) -> Tensor:
            return tensor.tensor_split(count)[index] if next(numbers) in self.by_rows else tensor

        found: Extra = map_tensors(self.extras[layer], take)
        if not self.originals[layer]:
            return found
        for one in held_in(found):
            if isinstance(one, Tensor) and id(one) not in known:
                has_rows = one.dim() > 0 and len(one) == len(self.x)
                known[id(one)] = one.tensor_split(count)[index] if has_rows else one
        return copied(found, known)


def given_by_loop(x: Tensor, extras: list[Extra], by_rows: frozenset[int]) -> ChainInputs:
    """Return the inputs, with copies of objects that layers could write to."""
    mine = [mutable_in((*args, *kwargs.values())) for args, kwargs in extras]
    known: dict[int, object] = {}
    copies = [copied(one, known) if some else one for one, some in zip(extras, mine, strict=True)]
    return ChainInputs(x, copies, by_rows, mine)


def tensors_in(extra: Extra) -> list[Tensor]:
    return [leaf for leaf in leaves(extra) if isinstance(leaf, Tensor)]


def rows_in(x: Tensor, extras: list[Extra]) -> dict[int, bool]:
    """Return, for each tensor in the extras, whether it has a row for each sample.

    Tensors are identified by their place among all leaves, as a mask may be None in one batch and a
    tensor in another.
    """
    found = [leaf for extra in extras for leaf in leaves(extra)]
    return {
        place: one.dim() > 0 and len(one) == len(x)
        for place, one in enumerate(found)
        if isinstance(one, Tensor)
    }


def check(name: str, x: object, extras: list[Extra]) -> Tensor:
    """Return the input. Raises Unsupported if it can't be cut into micro-batches or sent."""
    if not isinstance(x, Tensor) or x.dim() == 0 or not len(x):
        kind = f"a tensor of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise Unsupported(
            f"the layers of {name} get {kind}: strategy='pipeline' needs a tensor with samples in"
            " dim 0; use strategy='ddp'"
        )
    wanted = [one for extra in extras for one in tensors_in(extra) if one.requires_grad]
    if wanted and torch.is_grad_enabled():
        raise Unsupported(
            f"the layers of {name} get a tensor of shape {tuple(wanted[0].shape)} besides their"
            " input, and it requires gradients, which strategy='pipeline' sends only along the"
            " layers: make it in the layer, detach() it, or use strategy='ddp'"
        )
    return x
