"""Errors about what ZeRO can't do. Each names the cause and the remedy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from torch import Tensor
from torch.nn import Module
from torch.optim import LBFGS, Optimizer
from torchbus.plugin import TorchbusError, Unsupported, UsageError

from torchbus_deepspeed import _compat
from torchbus_deepspeed.engine import ReducingEngine

LATE = (
    "strategy='{}': {} gets more parameters after its DeepSpeed engine was made, which has flat"
    " parts of a fixed size. Give it all parameters when you make it (frozen ones need another"
    " optimizer), or use strategy='ddp' or 'fsdp'"
)
THAWED = (
    "strategy='{}': a parameter that was frozen at the first forward requires gradients now, and"
    " DeepSpeed's flat parts don't have it. Make a new optimizer after thawing it, or use"
    " strategy='ddp' or 'fsdp'"
)
TOGETHER = (
    "strategy='{}' with {}: its step looks at all parameters together, of which a rank has only a"
    " part; use strategy='ddp'"
)
LOOSE = (
    "strategy='{}': {} holds a tensor of shape {} that is in no module, and DeepSpeed needs a"
    " model. Make it a parameter of a module, or use strategy='ddp'"
)
COMPILED = (
    "strategy='{}': {} is compiled (torch.compile), and DeepSpeed's hooks of stage 3 can't be."
    " Leave torch.compile out, or use zero_optimization.stage=2"
)
KIND = (
    "strategy='{}': {} of {} {}, which DeepSpeed's flat parts can't have. {}, or use strategy='ddp'"
)
SHARED = (
    "strategy='{}': two optimizers hold the same parameter of {}, which can be in one DeepSpeed"
    " engine. Give each parameter to one optimizer, or use strategy='ddp'"
)
TWO_AT_STAGE_3 = (
    "strategy='{}': {} has two optimizers, and at stage 3 DeepSpeed divides a whole model for one."
    " Make one optimizer with two groups, or use zero_optimization.stage=2"
)
PARTIAL = (
    "strategy='{}': {} requires gradients, and {} does not hold it. At stage 3 DeepSpeed divides"
    " all of {}: freeze what is not trained (requires_grad_(False)), give all of it to one"
    " optimizer, or use zero_optimization.stage=2"
)
STALE = (
    "{}.step() would use gradients that its last step has used, and what was added since. Under"
    " strategy='{}' gradients are not in p.grad, so the session can't see whether the loop has"
    " cleared them: call optimizer.zero_grad() or model.zero_grad(), or use strategy='ddp'"
)
EMPTY = (
    "{}. Under strategy='{}', parameters are empty outside of the forward of their own module"
    " (ZeRO stage 3): call that module, and don't use its parameters elsewhere, or use"
    " zero_optimization.stage=2"
)
NO_GRADIENT = (
    "p.grad is None (it has no {!r}): under strategy='{}' DeepSpeed keeps each rank's part of the"
    " gradients. Use torch.nn.utils.clip_grad_norm_, whose result is the norm over all of them, or"
    " strategy='ddp'"
)

OF_SIZES = re.compile(r"\[0\]|\(0\)|\b1-D\b|\bsize 0\b|must be a matrix")
"""Matches torch's errors for an operation with an empty tensor in place of a matrix."""


def refuse_together(optimizer: Optimizer, strategy: str) -> None:
    if isinstance(optimizer, LBFGS):
        raise UsageError(TOGETHER.format(strategy, type(optimizer).__name__))


def refuse_loose(
    held: Iterable[Tensor], models: Iterable[Module], strategy: str, optimizer: str
) -> None:
    """Raise Unsupported for a trained tensor that no model owns."""
    owned = {id(parameter) for model in models for parameter in model.parameters()}
    for tensor in held:
        if id(tensor) not in owned:
            raise Unsupported(LOOSE.format(strategy, optimizer, tuple(tensor.shape)))


def refuse_kinds(models: Iterable[Module], trained: Iterable[Tensor], strategy: str) -> None:
    """Raise UsageError for a trained parameter that is complex or has no elements."""
    wanted = {id(parameter) for parameter in trained}
    for model in models:
        for name, one in model.named_parameters():
            if id(one) in wanted and (one.is_complex() or not one.numel()):
                what, remedy = (
                    ("is complex", "Keep it as torch.view_as_real(parameter)")
                    if one.is_complex()
                    else ("has no elements", "Freeze it (requires_grad_(False))")
                )
                facts = strategy, name, type(model).__name__, what, remedy
                raise UsageError(KIND.format(*facts))


def refuse_shared(
    held: Sequence[Tensor],
    models: Iterable[Module],
    engines: Iterable[ReducingEngine],
    strategy: str,
) -> None:
    """Raise Unsupported if another engine has the same parameter or, at stage 3, the model."""
    for model in models:
        for engine in engines:
            if any(parameter in engine.layout for parameter in held):
                raise Unsupported(SHARED.format(strategy, type(engine.model).__name__))
            if engine.model is model and engine.stage == 3:
                raise Unsupported(TWO_AT_STAGE_3.format(strategy, type(model).__name__))


def refuse_compiled(models: Iterable[Module], strategy: str) -> None:
    """Raise Unsupported, for stage 3, if a model or a part of it is compiled."""
    for compiled in map(_compat.compiled_in, models):
        if compiled is not None:
            raise Unsupported(COMPILED.format(strategy, type(compiled).__name__))


def refuse_partial(
    models: Iterable[Module], held: Iterable[Tensor], strategy: str, optimizer: str
) -> None:
    """Raise Unsupported, for stage 3, if an optimizer lacks a trained parameter of a model."""
    inside = {id(parameter) for parameter in held}
    for model in models:
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and id(parameter) not in inside:
                facts = strategy, name, optimizer, type(model).__name__
                raise Unsupported(PARTIAL.format(*facts))


def translate(
    error: BaseException | None, engines: Sequence[ReducingEngine], strategy: str
) -> Unsupported | None:
    """Return an explanation if the loop's error comes from ``p.grad`` or an empty parameter."""
    if isinstance(error, TorchbusError):
        return None
    if isinstance(error, RuntimeError) and any(each.stage == 3 for each in engines):
        reported = str(error).splitlines() or [""]
        return (
            Unsupported(EMPTY.format(reported[0], strategy))
            if OF_SIZES.search(reported[0])
            else None
        )
    if not isinstance(error, AttributeError) or error.obj is not None or not engines:
        return None
    if not hasattr(Tensor, str(error.name)):
        return None
    return Unsupported(NO_GRADIENT.format(error.name, strategy))
