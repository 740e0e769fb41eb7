"""Rows: ``gradient[0].zero_()`` changes the gradient.

Torch's index into a divided tensor gives a copy, so the change would be lost without a message.
"""

from __future__ import annotations

from collections.abc import Callable
from types import EllipsisType
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor

from torchbus_sharded._compat.tensors import tree_map
from torchbus_sharded.dtensor.writing import may_be_written, set_item
from torchbus_strategy import sharding

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


class Row(DTensor):
    """A part of a tensor. Changes are written back to that. All ranks make them: they gather."""

    origin: DTensor
    index: Any

    def __setitem__(self, index: Any, values: Any) -> None:
        set_item(self, index, values)
        self.origin[self.index] = self


def get_item(tensor: DTensor, index: Any) -> Tensor:
    found: Any = GET_ITEM(tensor, index)
    words = index if isinstance(index, tuple) else (index,)
    if may_be_written(tensor) and all(isinstance(word, OF_A_VIEW) for word in words):
        found.__class__ = Row
        found.origin, found.index = tensor, index
    row: Tensor = found
    return row


def _through(name: str) -> Callable[..., Row]:
    def change(row: Row, *args: object, **options: object) -> Row:
        values = sharding.whole(row)
        getattr(values, name)(*tree_map(sharding.whole, args), **tree_map(sharding.whole, options))
        row.origin[row.index] = values
        return row

    return change


for name in [*IN_PLACE, *OPERATORS]:
    setattr(Row, name, _through(name))
