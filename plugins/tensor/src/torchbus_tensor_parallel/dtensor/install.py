"""Lets the script's code compute with DTensors as one process computes with whole tensors."""

from __future__ import annotations

from torch.backends import mha
from torch.distributed.tensor.experimental import implicit_replication
from torch.nn import functional
from torchbus.plugin import Context, dtensors

from torchbus_tensor_parallel.dtensor.attention import by_heads
from torchbus_tensor_parallel.dtensor.random import DROPOUT


def as_whole(session: Context) -> None:
    """Until the end of the block, draw, attend and read as if tensors were whole.

    A plain tensor beside a DTensor counts as one that all ranks have.
    """
    dtensors.forget_other_meshes(session)
    session.on_close.enter_context(implicit_replication())
    dtensors.as_whole(session, dtensors.READS | dtensors.DRAWS, dtensors.METHODS)
    compute_divided(session)


def compute_divided(session: Context) -> None:
    """Until the end of the block, attend and drop out with features that are divided."""
    dtensors.as_whole(session, DROPOUT, {})
    session.replace(functional, "scaled_dot_product_attention", by_heads)
    # one kernel for a whole nn.TransformerEncoderLayer, which knows no DTensors
    session.on_close.callback(mha.set_fastpath_enabled, mha.get_fastpath_enabled())
    mha.set_fastpath_enabled(False)
