"""Reads, writes, initialises and copies sharded tensors as whole ones for the script.

It replaces functions of tensors until the session ends. It knows no model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torchbus.plugin import Context, Unsupported
from torchbus.tree import map_leaves

from torchbus_sharded.meta import refuse_accumulated
from torchbus_strategy import sharding


def chunk(tensor: DTensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    return _pieces(tensor, _shape_of(tensor).chunk(chunks, dim), dim)


def copied(tensor: DTensor, memo: dict[int, object]) -> object:
    """Deep-copy this rank's shard without its gradient. Torch's own copy fails."""
    if id(tensor) in memo:
        return memo[id(tensor)]
    if not tensor.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user support the deepcopy protocol"
        )
    mine = tensor.detach().clone()
    memo[id(tensor)] = (
        nn.Parameter(mine, tensor.requires_grad)
        if isinstance(tensor, nn.Parameter)
        else mine.requires_grad_(tensor.requires_grad)
    )
    return memo[id(tensor)]


def get_item(tensor: DTensor, index: Any) -> Tensor:
    found: Any = GET_ITEM(tensor, index)
    parts = index if isinstance(index, tuple) else (index,)
    if may_be_written(tensor) and all(isinstance(word, OF_A_VIEW) for word in parts):
        found.__class__ = WritableShard
        found.origin, found.index = tensor, index
    row: Tensor = found
    return row


def narrow(tensor: DTensor, dim: int, start: int | Tensor, length: int) -> Tensor:
    first = int(start) % tensor.shape[dim] if int(start) < 0 else int(start)
    return select(tensor, dim, slice(first, first + length))


def rows(tensor: DTensor) -> Iterator[Tensor]:
    if tensor.dim() == 0:
        raise TypeError("iteration over a 0-d tensor")
    return iter(unbind(tensor))


def select(tensor: DTensor, dim: int, index: int | slice) -> Tensor:
    return get_item(tensor, (slice(None),) * (dim % tensor.dim()) + (index,))


def set_item(tensor: DTensor, index: Any, values: Any) -> None:
    """Write to the gathered tensor, and copy the result to this rank's shard. All ranks call it."""
    if not may_be_written(tensor):
        return SET_ITEM(tensor, index, values)  # raises for a parameter, as without a session
    changed = sharding.whole(tensor)
    changed[map_leaves(index, sharding.whole)] = sharding.whole(values)
    _put(tensor, changed)


def split(tensor: DTensor, split_size: int | list[int], dim: int = 0) -> tuple[Tensor, ...]:
    return _pieces(tensor, _shape_of(tensor).split(split_size, dim), dim)


def unbind(tensor: DTensor, dim: int = 0) -> tuple[Tensor, ...]:
    return tuple(select(tensor, dim, index) for index in range(tensor.shape[dim]))


METHODS: dict[str, object] = {
    **sharding.METHODS,
    "__getitem__": get_item,
    "__setitem__": set_item,
    "__iter__": rows,
    "select": select,
    "narrow": narrow,
    "unbind": unbind,
    "split": split,
    "chunk": chunk,
    "__deepcopy__": copied,
    "register_post_accumulate_grad_hook": refuse_accumulated,
}


def as_whole(session: Context) -> None:
    """Replace these methods until the end of the block. All ranks call them, since they gather."""
    sharding.as_whole(session, sharding.READS | sharding.DRAWS, METHODS)


def _shape_of(tensor: DTensor) -> Tensor:
    return torch.empty(tensor.shape, device="meta")


def _pieces(tensor: DTensor, like: tuple[Tensor, ...], dim: int) -> tuple[Tensor, ...]:
    found, start = [], 0
    for piece in like:
        found.append(narrow(tensor, dim, start, piece.shape[dim]))
        start += piece.shape[dim]
    return tuple(found)


GET_ITEM = Tensor.__getitem__
OF_A_VIEW = (int, slice, type(None), EllipsisType)
IN_PLACE = [
    name
    for name in dir(Tensor)
    if name.endswith("_") and not name.startswith("_") and name != "requires_grad_"
]
OPERATORS = [
    f"__{name}__"
    for name in (
        "iadd",
        "isub",
        "imul",
        "itruediv",
        "ifloordiv",
        "imod",
        "ipow",
        "iand",
        "ior",
        "ixor",
    )
]


class WritableShard(DTensor):
    """A view of a sharded tensor, which writes changes back. All ranks must make them."""

    origin: DTensor
    index: Any

    def __setitem__(self, index: Any, values: Any) -> None:
        set_item(self, index, values)
        self.origin[self.index] = self


def _through(name: str) -> Callable[..., WritableShard]:
    def change(row: WritableShard, *args: object, **options: object) -> WritableShard:
        values = sharding.whole(row)
        given, named = map_leaves((args, options), sharding.whole)
        getattr(values, name)(*given, **named)
        row.origin[row.index] = values
        return row

    return change


for name in [*IN_PLACE, *OPERATORS]:
    setattr(WritableShard, name, _through(name))


SET_ITEM = Tensor.__setitem__


def set_data(tensor: DTensor, values: Tensor) -> None:
    check_alike(tensor, values)
    _put(tensor, values)


def check_alike(tensor: Tensor, values: Tensor) -> None:
    """Raise Unsupported if the values have another shape or dtype."""
    if values.shape != tensor.shape or values.dtype != tensor.dtype:
        raise Unsupported(
            f"weight.data = values under strategy='fsdp': values of shape {tuple(values.shape)} and"
            f" {values.dtype} for a parameter of shape {tuple(tensor.shape)} and {tensor.dtype},"
            " which is divided. Do it before you make the optimizer, or use strategy='ddp'"
        )


def may_be_written(tensor: DTensor) -> bool:
    """Whether a tensor has no graph and is not a pending sum."""
    in_graph = torch.is_grad_enabled() and tensor.requires_grad
    return not in_graph and not any(one.is_partial() for one in tensor.placements)


def _put(tensor: DTensor, values: Tensor) -> None:
    alike = isinstance(values, DTensor) and values.placements == tensor.placements
    divided: Any = values if alike else sharding.like(sharding.whole(values), tensor)
    tensor.to_local().detach().copy_(divided.to_local().detach())
    torch.autograd.graph.increment_version(tensor)
