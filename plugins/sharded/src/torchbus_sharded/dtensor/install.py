"""Lets the script read, write and draw divided tensors as if they were whole."""

from __future__ import annotations

from torchbus.plugin import Context

from torchbus_sharded.dtensor import named_views
from torchbus_sharded.dtensor.deepcopy import copied
from torchbus_sharded.dtensor.row_views import get_item
from torchbus_sharded.dtensor.writing import set_item
from torchbus_sharded.engine.parameter_hooks import refuse_accumulated
from torchbus_strategy import sharding

METHODS: dict[str, object] = {
    **sharding.METHODS,
    "__getitem__": get_item,
    "__setitem__": set_item,
    "__iter__": named_views.rows,
    "select": named_views.select,
    "narrow": named_views.narrow,
    "unbind": named_views.unbind,
    "split": named_views.split,
    "chunk": named_views.chunk,
    "__deepcopy__": copied,
    "register_post_accumulate_grad_hook": refuse_accumulated,
}


def as_whole(session: Context) -> None:
    """Replace these methods until the end of the block. All ranks call them: they gather."""
    sharding.as_whole(session, sharding.READS | sharding.DRAWS, METHODS)
