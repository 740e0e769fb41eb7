"""Gradients of whole tensors that the script's code has mixed with DTensors.

Torch gives such a tensor a DTensor. It can't add that to an earlier gradient of a parameter, nor
hand it to a layer that has given a plain tensor.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge
from torch.distributed.tensor import DTensor
from torch.nn import Module


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
