"""Which optimizers step flat parts of parameters as they step the parameters."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer
from torchbus.plugin import UsageError

from torchbus_deepspeed.engine.shadow import shadow_of
from torchbus_deepspeed.optimizers import kernels, trial

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


def refuse_unless_by_element(optimizer: Optimizer, strategy: str) -> None:
    """Raise UsageError for an optimizer whose numbers would change in flat parts.

    Of classes that torch does not have, two small steps are tried: once on two tensors, once on
    two parts of all their elements.
    """
    cls = type(optimizer)
    if cls.__module__.startswith("torch.optim.") and cls.__name__ in KNOWN:
        return
    if kernels.of_loop(optimizer) is not None:
        return
    if not _steps_by_element(optimizer):
        raise UsageError(TOGETHER.format(strategy, cls.__name__))


def _steps_by_element(optimizer: Optimizer) -> bool:
    start, gradients = trial.tensors(), trial.made()
    try:
        whole = _stepped(optimizer, start, gradients)
        parts = _stepped(optimizer, _parts(start), [_parts(each) for each in gradients])
    except Exception:  # whatever a class that nobody here knows may raise
        return False
    return trial.alike(_parts(whole), parts)


def _stepped(
    optimizer: Optimizer, start: list[Tensor], gradients: list[list[Tensor]]
) -> list[Tensor]:
    return trial.stepped(shadow_of(optimizer, set()), {}, start, gradients)


def _parts(tensors: list[Tensor]) -> list[Tensor]:
    """All elements, flat, in two parts that end in the middle of a tensor."""
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    return [flat[:7].clone(), flat[7:].clone()]
