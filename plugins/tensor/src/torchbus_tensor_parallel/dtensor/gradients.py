"""Gradients of whole tensors that the script's code has mixed with DTensors.

Torch gives such a tensor a DTensor. It can't add that to an earlier gradient of a parameter, nor
hand it to a layer that has given a plain tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.experimental import implicit_replication
from torch.nn import Module
from torchbus.plugin import UsageError
from torchbus.tree import map_tensors


def undivided(model: Module) -> Iterator[nn.Parameter]:
    """The parameters of which every rank has the whole, and that are trained."""
    for one in model.parameters():
        if one.requires_grad and not isinstance(one, DTensor):
            yield one


def whole(gradient: Tensor) -> Tensor:
    """A hook of a parameter. All ranks of the mesh run it."""
    return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient


def gathered(one: Tensor) -> Tensor:
    """The whole of a DTensor, with a graph; a plain tensor itself.

    Either may then be mixed with DTensors.
    """
    plain = one.full_tensor() if isinstance(one, DTensor) else one
    if plain.grad_fn is not None:
        plain.grad_fn.register_prehook(_all_whole)
    return plain


def make_whole_when_added(parameter: nn.Parameter) -> Node:
    """Make its gradients whole before they are added to earlier ones.

    Returns the graph's node that adds them: keep it, since the hook lives as long as it does. A
    hook of the parameter itself would run after the backward, as the loop's own hooks do.
    """
    node = get_gradient_edge(parameter).node
    node.register_prehook(_all_whole)
    return node


def _all_whole(gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    return tuple(None if one is None else whole(one) for one in gradients)


class Mixing:
    """Between ``begin`` and ``end``, a plain tensor counts as one that all ranks have.

    Calls may be nested. Outside, torch continues to refuse such a mixture.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._open = ExitStack()

    def around(self, model: Module, undo: ExitStack) -> None:
        """Begin with each forward of the model, and end with it, also if it raises."""
        undo.callback(model.register_forward_pre_hook(self._before, prepend=True).remove)
        undo.callback(model.register_forward_hook(self._after, always_call=True).remove)

    def begin(self) -> None:
        self._depth += 1
        if self._depth == 1:
            self._open.enter_context(implicit_replication())

    def end(self) -> None:
        self._depth = max(self._depth - 1, 0)
        if not self._depth:
            self._open.close()

    def _before(self, model: Module, inputs: object) -> None:
        self.begin()

    def _after(self, model: Module, inputs: object, outputs: object) -> None:
        self.end()


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
