"""The leaf tensors that a backward reaches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchbus.plugin import BackwardCall
from torchbus.tree import as_list

ACCUMULATES: Any = type(torch.ones((), requires_grad=True).expand(1).grad_fn.next_functions[0][0])  # type: ignore[union-attr]


def reached(call: BackwardCall) -> list[Tensor]:
    """The tensors whose ``grad`` this backward adds to: its ``inputs=``, or its graph's leaves."""
    if call.inputs is not None:
        return as_list(call.inputs)
    tensors = as_list(call.tensors)
    found = [tensor for tensor in tensors if isinstance(tensor, Tensor) and tensor.is_leaf]
    waiting: list[Any] = [
        tensor.grad_fn
        for tensor in tensors
        if isinstance(tensor, Tensor) and tensor.grad_fn is not None
    ]
    seen: set[Any] = {None, *waiting}
    for node in waiting:
        for child, _ in node.next_functions:
            if child in seen:
                continue
            seen.add(child)
            if type(child) is ACCUMULATES:
                found.append(child.variable)
            else:
                waiting.append(child)
    return found
