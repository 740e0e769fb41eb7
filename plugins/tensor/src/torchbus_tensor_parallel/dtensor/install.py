"""Lets the script's code compute with DTensors as one process computes with whole tensors."""

from __future__ import annotations

from torch.backends import mha
from torch.distributed.tensor.experimental import implicit_replication
from torch.nn import functional
from torchbus.plugin import Context, muted

from torchbus_strategy import sharding
from torchbus_tensor_parallel.dtensor import reductions
from torchbus_tensor_parallel.dtensor.attention import by_heads
from torchbus_tensor_parallel.dtensor.copying import copied
from torchbus_tensor_parallel.dtensor.in_place import WRITES
from torchbus_tensor_parallel.dtensor.joining import JOINS
from torchbus_tensor_parallel.dtensor.means import LOSSES
from torchbus_tensor_parallel.dtensor.random import DROPOUT

MEETING = "Found a non-scalar tensor with numel=1"
"""Torch says so where a plain tensor meets DTensors. Here every rank has the whole of it."""
OPERATORS = sharding.READS | sharding.DRAWS | WRITES
METHODS = sharding.METHODS | reductions.METHODS | {"__deepcopy__": copied}


def as_whole(session: Context) -> None:
    """Until the end of the block, draw, attend, read, write and copy as if tensors were whole.

    A plain tensor beside a DTensor counts as one that all ranks have.
    """
    sharding.forget_other_meshes(session)
    session.on_close.enter_context(implicit_replication())
    session.on_close.enter_context(muted(MEETING, UserWarning))
    sharding.as_whole(session, OPERATORS, METHODS)
    compute_divided(session)


def compute_divided(session: Context) -> None:
    """Until the end of the block, attend, drop out and compare with features that are divided."""
    sharding.as_whole(session, DROPOUT | LOSSES | JOINS, {})
    session.replace(functional, "scaled_dot_product_attention", by_heads)
    # one kernel for a whole nn.TransformerEncoderLayer, which knows no DTensors
    session.on_close.callback(mha.set_fastpath_enabled, mha.get_fastpath_enabled())
    mha.set_fastpath_enabled(False)
