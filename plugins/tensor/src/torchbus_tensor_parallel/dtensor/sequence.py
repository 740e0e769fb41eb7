"""Where activations enter and leave the blocks in which each rank has a part of the sequence."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn import Module
from torchbus.plugin import UsageError
from torchbus.tree import map_tensors

DIM = 1


def divide_between(
    blocks: list[Module], mesh: DeviceMesh, gather: Callable[[Tensor], Tensor]
) -> list[Callable[[], None]]:
    """Divide the inputs of these blocks, which follow each other, and gather the last one's output.

    The first input has the shape (batch, sequence, ...). Returns functions that undo this.
    """

    def leave(block: Module, inputs: object, outputs: object) -> object:
        return map_tensors(outputs, gather)

    enter = partial(_enter, mesh)
    handles = [block.register_forward_pre_hook(enter) for block in blocks]
    return [*(one.remove for one in handles), blocks[-1].register_forward_hook(leave).remove]


def _enter(mesh: DeviceMesh, block: Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    first = inputs[0] if inputs else None
    if not isinstance(first, Tensor) or first.dim() <= DIM:
        raise UsageError(
            f"sequence_parallel=True: the first positional argument of {type(block).__name__} must"
            " be a tensor of shape (batch, sequence, ...). Leave sequence_parallel out"
        )
    if not isinstance(first, DTensor):
        first = DTensor.from_local(first, mesh, [Replicate()], run_check=False)
    return first.redistribute(placements=[Shard(DIM)]), *inputs[1:]
