"""Lets the script's code compute with DTensors as one process computes with whole tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.backends import mha
from torch.distributed.tensor.experimental import implicit_replication
from torch.nn import functional
from torchbus.plugin import Context

from torchbus_tensor_parallel._compat import READ, forget_meshes, handlers
from torchbus_tensor_parallel.dtensor import reading
from torchbus_tensor_parallel.dtensor.attention import by_heads
from torchbus_tensor_parallel.dtensor.random import DRAWS

Handler = Callable[..., object]


def as_whole(session: Context) -> None:
    """Until the end of the block: random numbers, attention and reading are those of the whole.

    A plain tensor beside a DTensor counts as one that all ranks have.
    """
    forget_meshes()
    # A process that is forked later would wait for the threads of this block's process group.
    session.on_close.callback(forget_meshes)
    session.on_close.enter_context(implicit_replication())
    session.on_close.callback(session.seams.note("DTensor's operators", _handle(DRAWS)))
    session.on_close.callback(session.seams.note("DTensor.item", _handle({READ: reading.read})))
    for name in reading.METHODS:
        undo = session.seams.note(f"DTensor.{name}", reading.replace(name))
        session.on_close.callback(undo)
    session.replace(functional, "scaled_dot_product_attention", by_heads)
    # one kernel for a whole nn.TransformerEncoderLayer, which knows no DTensors
    session.on_close.callback(mha.set_fastpath_enabled, mha.get_fastpath_enabled())
    mha.set_fastpath_enabled(False)


def _handle(ours: Mapping[Any, Handler]) -> Callable[[], None]:
    """Let DTensor call these for operators. Returns a function that puts its own back."""
    known = handlers()
    before = {operator: known[operator] for operator in ours if operator in known}
    known.update(ours)

    def undo() -> None:
        for operator in ours:
            known.pop(operator, None)
        known.update(before)

    return undo
