"""Which optimizers step flat parts of parameters as they step the parameters."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer
from torchbus.plugin import UsageError

from torchbus_deepspeed.engine.shadow import shadow_of

TOGETHER = (
    "strategy='{}' with {}: its step looks at more than one element at a time, and a rank has only"
    " some of a parameter's, flat. Use an optimizer that steps each element by itself (AdamW, SGD),"
    " strategy='ddp', or zero_optimization.stage=0"
)
KNOWN = (
    "Adadelta",
    "Adagrad",
    "Adam",
    "Adamax",
    "AdamW",
    "ASGD",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SGD",
)
"""Classes of torch.optim, each of which steps each element by itself."""
SHAPES = ((3, 4), (5,))


def refuse_unless_by_element(optimizer: Optimizer, strategy: str) -> None:
    """Raise UsageError for an optimizer whose numbers would change in flat parts.

    Of classes that torch does not have, two small steps are tried: once on two tensors, once on
    two parts of all their elements.
    """
    cls = type(optimizer)
    if cls.__module__.startswith("torch.optim.") and cls.__name__ in KNOWN:
        return
    if cls.__module__.startswith("deepspeed.ops."):
        return
    if not _steps_by_element(optimizer):
        raise UsageError(TOGETHER.format(strategy, cls.__name__))


def _steps_by_element(optimizer: Optimizer) -> bool:
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=generator) for shape in SHAPES]
    gradients = [[torch.randn(shape, generator=generator) for shape in SHAPES] for _ in range(2)]
    try:
        whole = _stepped(optimizer, start, gradients)
        parts = _stepped(optimizer, _parts(start), [_parts(each) for each in gradients])
    except Exception:  # whatever a class that nobody here knows may raise
        return False
    return all(
        torch.allclose(one, other, rtol=1e-4, atol=1e-6)
        for one, other in zip(_parts(whole), parts, strict=True)
    )


def _stepped(
    optimizer: Optimizer, start: list[Tensor], gradients: list[list[Tensor]]
) -> list[Tensor]:
    shadow = shadow_of(optimizer, set())
    tensors = [tensor.clone().requires_grad_() for tensor in start]
    shadow.param_groups = [{**shadow.param_groups[0], "params": tensors}]
    for made in gradients:
        for tensor, gradient in zip(tensors, made, strict=True):
            tensor.grad = gradient.clone()
        shadow.step()
    return [tensor.detach() for tensor in tensors]


def _parts(tensors: list[Tensor]) -> list[Tensor]:
    """All elements, flat, in two parts that end in the middle of a tensor."""
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    return [flat[:7].clone(), flat[7:].clone()]
