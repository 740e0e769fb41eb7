"""Clipping gradients that torch's own functions can't take, or must not write to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def is_unusual(gradients: Iterable[Tensor]) -> bool:
    """Sparse ones, and those that an optimizer with ``differentiable=True`` is to be differentiated through: writing to them breaks the graph."""
    return any(gradient.is_sparse or gradient.requires_grad for gradient in gradients)


def clip_norm(parameters: Sequence[Tensor], limit: float) -> Tensor:
    """As ``clip_grad_norm_``, with new gradients instead of changed ones. Returns the norm before, a 0-dim tensor."""
    trained = [parameter for parameter in parameters if parameter.grad is not None]
    gradients = [parameter.grad.coalesce() if parameter.grad.is_sparse else parameter.grad for parameter in trained if parameter.grad is not None]
    norms = [torch.linalg.vector_norm(gradient._values() if gradient.is_sparse else gradient) for gradient in gradients]
    norm: Tensor = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))
    factor = torch.clamp(limit / (norm + 1e-6), max=1.0)
    for parameter, gradient in zip(trained, gradients, strict=True):
        parameter.grad = gradient * factor.to(gradient.device)
    return norm.detach()


def clip_value(parameters: Sequence[Tensor], limit: float) -> None:
    """As ``clip_grad_value_``, likewise."""
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None and gradient.is_sparse:
            parameter.grad = gradient.detach().coalesce().clone()
            parameter.grad._values().clamp_(-limit, limit)
        elif gradient is not None:
            parameter.grad = gradient.clamp(-limit, limit)
