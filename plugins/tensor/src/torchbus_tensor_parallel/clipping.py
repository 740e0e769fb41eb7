"""``clip_grad_norm_`` of DTensors on several meshes, which torch can't clip together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from torchbus_strategy import compat, sharding

Run = Callable[[float], Tensor]


@torch.no_grad()
def clip_by_mesh(
    parameters: Sequence[Tensor], max_norm: float, norm_type: float, run: Run
) -> Tensor | None:
    """The norm over all gradients, by which they were clipped. All ranks call it.

    ``run(max_norm)`` does what torch does. None if there is nothing to do but that.
    """
    meshes = list(dict.fromkeys(_mesh(one) for one in parameters if one.grad is not None))
    if not any(meshes):
        return None
    if len(meshes) == 1:
        return _plain(run(max_norm))
    norms = [_norm_on(mesh, parameters, run) for mesh in meshes]
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type)
    factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    for one in parameters:
        if one.grad is not None:
            own = compat.own_part(one.grad)
            own.mul_(factor.to(own.device, own.dtype))
    return total


def _mesh(parameter: Tensor) -> object:
    return parameter.device_mesh if isinstance(parameter, DTensor) else None


def _norm_on(mesh: object, parameters: Sequence[Tensor], run: Run) -> Tensor:
    with _hidden([one for one in parameters if _mesh(one) != mesh]):
        return _plain(run(math.inf))


def _plain(norm: Tensor) -> Tensor:
    plain: Tensor = sharding.whole(norm)
    return plain


@contextmanager
def _hidden(parameters: Sequence[Tensor]) -> Iterator[None]:
    gradients = [one.grad for one in parameters]
    for one in parameters:
        one.grad = None
    try:
        yield
    finally:
        for one, gradient in zip(parameters, gradients, strict=True):
            one.grad = gradient
