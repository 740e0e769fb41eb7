"""Gradients of parameters that the plan leaves whole, in layers whose inputs are divided.

Torch gives such a parameter a DTensor, which it can't add to an earlier gradient.
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


def make_whole_when_added(parameter: nn.Parameter) -> Node:
    """Make its gradients whole before they are added to earlier ones.

    Returns the graph's node that adds them: keep it, since the hook lives as long as it does. A
    hook of the parameter itself would run after the backward, as the loop's own hooks do.
    """
    node = get_gradient_edge(parameter).node
    node.register_prehook(lambda gradients: tuple(map(_whole_or_none, gradients)))
    return node


def _whole_or_none(gradient: Tensor | None) -> Tensor | None:
    return None if gradient is None else whole(gradient)
