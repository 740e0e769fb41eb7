"""``clip_grad_norm_`` and ``clip_grad_value_`` for gradients of which a rank has a part."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torchbus.plugin import hookimpl

from torchbus_deepspeed.training.engines import Engines


class Clipping:
    """The norm is that of all elements on all ranks. All ranks call it alike."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    @hookimpl
    @torch.no_grad()
    def clip_gradients(
        self, parameters: list[Tensor], max_norm: float, norm_type: float
    ) -> Tensor | None:
        if not self._holds(parameters):
            return None
        parts, others = self._parts(parameters)
        norm = self._norm(parts, others, float(norm_type))
        factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        for gradient in [*parts, *others]:
            gradient.mul_(factor.to(gradient.device, gradient.dtype))
        return norm

    @hookimpl
    @torch.no_grad()
    def clip_gradient_values(self, parameters: list[Tensor], clip_value: float) -> bool | None:
        if not self._holds(parameters):
            return None
        parts, others = self._parts(parameters)
        for gradient in [*parts, *others]:
            gradient.clamp_(-clip_value, clip_value)
        return True

    def _holds(self, parameters: Sequence[Tensor]) -> bool:
        return any(one in each.layout for each in self._engines for one in parameters)

    def _parts(self, parameters: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """This rank's pieces of the averaged gradients, and gradients that each rank has whole."""
        parts = [
            view
            for each in self._engines
            for one in parameters
            if one in each.layout
            for view in each.layout.views(one, [holder.grad for holder in each.gradients])
        ]
        return parts, [one.grad for one in parameters if one.grad is not None]

    def _norm(self, parts: list[Tensor], others: list[Tensor], kind: float) -> Tensor:
        device = self._engines.session.device
        own = _norm(parts, kind, device)
        if math.isinf(kind):
            dist.all_reduce(own, dist.ReduceOp.MAX)
            return torch.maximum(own, _norm(others, kind, device))
        total = own**kind
        dist.all_reduce(total)
        found: Tensor = (total + _norm(others, kind, device) ** kind) ** (1.0 / kind)
        return found


def _norm(tensors: list[Tensor], kind: float, device: torch.device) -> Tensor:
    if not tensors:
        return torch.zeros((), device=device)
    norms = [torch.linalg.vector_norm(tensor, kind).to(device).float() for tensor in tensors]
    found: Tensor = torch.linalg.vector_norm(torch.stack(norms), kind)
    return found
