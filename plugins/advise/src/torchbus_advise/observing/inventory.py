"""The parameters, gradients and optimizer states that there are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torchbus import objects

from torchbus_advise.observing.facts import NO_OPTIMIZER, ROOT_UNIT, OptimizerFacts, ParameterFacts


def models() -> list[Module]:
    """The outermost ones that have parameters."""
    found = objects.outermost(objects.alive(Module))
    return [
        model
        for model in found
        if not objects.is_internal(model) and any(True for _ in model.parameters())
    ]


def parameters(optimizers: list[Optimizer], gradient_bytes: dict[int, int]) -> list[ParameterFacts]:
    """Each parameter once, in the order of models and then of optimizers. ``gradient_bytes``: the
    largest gradient that each has had, by id."""
    holder = {id(one): number for number, held in enumerate(optimizers) for one in _of(held)}
    units, managed = _units(models(), holder)
    everything: dict[int, Tensor] = {
        id(one): one for model in models() for one in model.parameters()
    }
    everything |= {id(one): one for optimizer in optimizers for one in _of(optimizer)}
    facts = []
    for key, parameter in everything.items():
        number = holder.get(key, NO_OPTIMIZER)
        state = optimizers[number].state.get(parameter, {}) if number != NO_OPTIMIZER else {}
        alike, scalars = _state_bytes(parameter, state)
        facts.append(
            ParameterFacts(
                tuple(parameter.shape),
                parameter.nbytes,
                gradient_bytes.get(key, 0),
                alike,
                scalars,
                number,
                key in managed or key in holder,
                units.get(key, ROOT_UNIT),
            )
        )
    return facts


def described(optimizers: Iterable[Optimizer]) -> list[OptimizerFacts]:
    return [
        OptimizerFacts(type(one).__name__, tuple(map(_rate, one.param_groups)))
        for one in optimizers
    ]


def _rate(group: dict[str, Any]) -> float:
    """The script's rate, not what a scheduler has made of it in the first steps, as in a warm-up.

    ``max_lr`` is that of cyclic schedules.
    """
    return float(group.get("max_lr", group.get("initial_lr", group.get("lr", 0.0))))


def buffer_bytes() -> int:
    return sum(buffer.nbytes for model in models() for buffer in model.buffers())


def has_low_precision(optimizers: Iterable[Optimizer]) -> bool:
    """Whether the script trains in another dtype than float32."""
    return any(parameter.dtype != torch.float32 for held in optimizers for parameter in _of(held))


def hindrances(optimizers: Iterable[Optimizer]) -> list[str]:
    """What the sharded strategies refuse."""
    found = [name for name in map(_refused, optimizers) if name]
    sparse = any(
        isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag) and module.sparse
        for model in models()
        for module in model.modules()
    )
    return sorted({*found, *(["sparse embeddings"] if sparse else [])})


def _refused(optimizer: Optimizer) -> str:
    name = type(optimizer).__name__
    return f"the optimizer {name}" if name in ("LBFGS", "Adafactor", "SparseAdam") else ""


def _of(optimizer: Optimizer) -> list[Tensor]:
    return [one for group in optimizer.param_groups for one in group["params"]]


def _units(found: list[Module], holder: dict[int, int]) -> tuple[dict[int, int], set[int]]:
    """The repeated block of each parameter, and the parameters of models that an optimizer
    holds."""
    units: dict[int, int] = {}
    managed: set[int] = set()
    blocks = 0
    for model in found:
        mine = {id(one) for one in model.parameters()}
        managed |= mine if mine & holder.keys() else set()
        for block in objects.repeated_blocks(model):
            for parameter in block.parameters():
                units.setdefault(id(parameter), blocks)
            blocks += 1
    return units, managed


def _state_bytes(parameter: Tensor, state: dict[str, object]) -> tuple[int, int]:
    alike = scalars = 0
    for value in state.values():
        if isinstance(value, Tensor) and value.shape == parameter.shape and value.dim():
            alike += value.nbytes
        elif isinstance(value, Tensor):
            scalars += value.nbytes
    return alike, scalars
