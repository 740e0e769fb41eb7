"""Torch's errors about divided tensors, in words that name the offender and the remedy."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from types import FrameType

from torch.distributed.fsdp import FSDPModule
from torch.nn import Module
from torchbus.plugin import Unsupported

from torchbus_sharded._compat.fsdp2 import names_in, original_class
from torchbus_sharded.checks.refusals import made_later
from torchbus_strategy import sharding

OUTSIDE = ("its data is not allocated yet", "for input.numel() == 0")
"""What torch says of parts outside of forward."""
BY_ITSELF = (
    "{}.forward is called by itself, and what gathers its parameters under strategy='fsdp' is a"
    " call of the module: call it (module(x)), or take module.forward after the optimizer was made"
)
ASSIGNED = "(torch.nn.Parameter or None expected)"
PART_FIRST = "FSDP state has already been lazily initialized"


def translate(error: BaseException | None, models: Iterable[Module]) -> Unsupported | None:
    """What to say instead of torch's own words, if these are about divided tensors."""
    if isinstance(error, RuntimeError) and PART_FIRST in str(error):
        return Unsupported(
            "a part of a model was called by itself before the model that its optimizer has (such"
            " as model.module of a DataParallel, or a block): under strategy='fsdp' the whole is"
            " called first. Call the whole in both places, or use strategy='ddp'"
        )
    is_mixture = sharding.has_sign(error, *OUTSIDE)
    is_assigned = isinstance(error, TypeError) and ASSIGNED in str(error)
    new = _new_parameter(models) if is_mixture or is_assigned else ""
    if new:
        return Unsupported(new)
    if error is not None and is_mixture:
        return _mixture(error, models)
    return sharding.no_entry(error, "of a model that strategy='fsdp' has divided")


def _is_by_itself(forward: FrameType, caller: FrameType) -> bool:
    """Whether the script calls a unit's forward, and not torch or a class that extends it."""
    module = forward.f_locals.get("self")
    return (
        isinstance(module, FSDPModule)
        and caller.f_locals.get("self") is not module
        and not caller.f_globals["__name__"].startswith("torch")
    )


def _new_parameter(models: Iterable[Module]) -> str:
    for model in models:
        for name, _ in model.named_parameters(remove_duplicate=False):
            if name not in names_in(model):
                return made_later(name, model)
    return ""


def _mixture(error: BaseException, models: Iterable[Module]) -> Unsupported:
    """For an operation on parts, which names the method, or else the line."""
    parts = {
        id(part): original_class(model).__name__ for model in models for part in model.modules()
    }
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    callers = dict(zip(frames[1:], frames, strict=False))
    for frame, _ in sharding.places_of(error):
        owner, method = parts.get(id(frame.f_locals.get("self"))), frame.f_code.co_name
        if method == "forward" and _is_by_itself(frame, callers.get(frame, frame)):
            called = original_class(frame.f_locals["self"])
            return Unsupported(BY_ITSELF.format(called.__name__))
        if owner and method != "forward":
            return Unsupported(
                f"{owner}.{method} uses parameters outside forward. There a rank has only a part of"
                f" each, under strategy='fsdp': say forward_methods=({method!r},), or use"
                " strategy='ddp'"
            )
    return Unsupported(
        f"{sharding.line_of(error)} mixes parts of parameters or gradients with whole tensors,"
        " which does not work under strategy='fsdp': take tensor.full_tensor(), or use"
        " strategy='ddp'. For an average of the weights, use ema_decay= or swa_start= of"
        " torchbus-average"
    )
