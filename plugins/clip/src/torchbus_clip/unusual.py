"""Clipping gradients that torch's own functions can't take, or must not write to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from torchbus_clip._compat import sparse_values


def is_unusual(gradients: Iterable[Tensor]) -> bool:
    """Whether some gradients are sparse or have a graph, which writing to them would break.

    They have one if an optimizer with ``differentiable=True`` is to be differentiated through.
    """
    return any(gradient.is_sparse or gradient.requires_grad for gradient in gradients)


def clip_norm(parameters: Sequence[Tensor], limit: float) -> Tensor:
    """Clip as ``clip_grad_norm_`` does, but make new gradients instead of changing them.

    Returns the norm before clipping, a 0-dim tensor.
    """
    trained = [parameter for parameter in parameters if parameter.grad is not None]
    gradients = [
        parameter.grad.coalesce() if parameter.grad.is_sparse else parameter.grad
        for parameter in trained
        if parameter.grad is not None
    ]
    norms = [
        torch.linalg.vector_norm(sparse_values(gradient) if gradient.is_sparse else gradient)
        for gradient in gradients
    ]
    norm: Tensor = torch.linalg.vector_norm(
        torch.stack([norm.to(norms[0].device) for norm in norms])
    )
    factor = torch.clamp(limit / (norm + 1e-6), max=1.0)
    for parameter, gradient in zip(trained, gradients, strict=True):
        parameter.grad = gradient * factor.to(gradient.device)
    return norm.detach()


def clip_value(parameters: Sequence[Tensor], limit: float) -> None:
    """Clip as ``clip_grad_value_`` does, but make new gradients instead of changing them."""
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None and gradient.is_sparse:
            parameter.grad = gradient.detach().coalesce().clone()
            sparse_values(parameter.grad).clamp_(-limit, limit)
        elif gradient is not None:
            parameter.grad = gradient.clamp(-limit, limit)
