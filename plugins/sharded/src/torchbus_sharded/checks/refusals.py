"""What torch refuses under fsdp, in words that name the offender and the remedy."""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, NoReturn

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import Module
from torch.optim import LBFGS, Adafactor, Optimizer
from torchbus.plugin import Unsupported, UsageError

from torchbus_sharded.checks.stale import Moved
from torchbus_sharded.engine.fsdp2 import original_class, pairs_in, units_in

OUTSIDE = (
    "mixed torch.Tensor and DTensor", "sharding strategy", "Sharding propagation failed",
    "its data is not allocated yet", "for input.numel() == 0",
)  # fmt: skip
PART_FIRST = "FSDP state has already been lazily initialized"
TOGETHER = {
    LBFGS: ("all parameters together", "'ddp'"),
    Adafactor: ("whole rows and columns of a parameter", "'ddp_sharded', or Adam"),
}  # fmt: skip
COPIES = ("__deepcopy__", "__reduce_ex__")
INSIDE_TORCH = torch.__path__[0]


def refuse_optimizer(optimizer: Optimizer) -> None:
    """Raises UsageError for one whose step needs more than the parts of a rank."""
    for cls, (what, remedy) in TOGETHER.items():
        if isinstance(optimizer, cls):
            raise UsageError(f"strategy='fsdp' with {cls.__name__}: its step looks at {what}, of which a rank has a part; use {remedy}")


def refuse_copies(model: Module) -> Callable[[], None]:
    """For ``copy.deepcopy(model)`` and ``pickle``, ``torch.save(model)`` with it; returns what takes it back."""
    name = original_class(model).__name__
    units = [vars(unit) for unit in units_in(model)]
    for attributes in units:
        attributes |= {"__deepcopy__": lambda memo: _no_copy(name), "__reduce_ex__": lambda protocol: _no_pickle(name)}

    def undo() -> None:
        for attributes in units:
            for each in COPIES:
                attributes.pop(each, None)

    return undo


def _no_copy(name: str) -> NoReturn:
    raise Unsupported(
        f"copy.deepcopy of {name} under strategy='fsdp': a rank has a part of it alone. Make the copy before its optimizer, or make a "
        "new model and load_state_dict(model.state_dict()); ddp_sharded and ddp copy"
    )


def _no_pickle(name: str) -> NoReturn:
    raise Unsupported(
        f"pickling {name} under strategy='fsdp' (torch.save(model), or a process that gets it): a rank has a part of it alone. Save "
        "model.state_dict(), which is whole, or save the model after the block"
    )


def refuse_borrowed(model: Module) -> None:
    """Raises Unsupported where ``torch.func.functional_call`` has put other tensors into the place of the parameters."""
    if any(one is not None and not isinstance(one, nn.Parameter) for module in model.modules() for one in module._parameters.values()):
        raise Unsupported(
            f"functional_call of {original_class(model).__name__} with other weights under strategy='fsdp': its own parts would be gathered in "
            "their place; use strategy='ddp' or 'dp'"
        )


def refuse_derivatives(models: Iterable[Module]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What makes another ``torch.autograd.grad`` of torch's: for parameters it is an error, for other tensors what it was."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            asked = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
            gathered = {id(getattr(pair, "_unsharded_param", None)) for model in models for pair in pairs_in(model)}
            if any(isinstance(one, DTensor | Moved) or id(one) in gathered for one in asked):
                raise Unsupported(
                    "torch.autograd.grad for parameters under strategy='fsdp': a rank would get the gradient of its own samples alone. Use "
                    "backward(), or strategy='ddp'"
                )
            return original(outputs, asked, *args, **kwargs)

        return grad

    return make


def translate(error: BaseException | None, models: Iterable[Module]) -> Unsupported | None:
    """What to say instead of torch's own words, where they are about divided tensors."""
    if isinstance(error, KeyError) and error.args and isinstance(error.args[0], DTensor):
        return Unsupported(
            "a dict has no entry for a parameter of a model that strategy='fsdp' has divided: it was made with the parameters from before. Make it "
            "after the optimizer, or use strategy='ddp'"
        )
    if isinstance(error, RuntimeError) and PART_FIRST in str(error):
        return Unsupported(
            "a part of a model was called alone before the model that its optimizer has (such as model.module of a DataParallel, or a block): under "
            "strategy='fsdp' the whole is called first. Call the whole in both places, or use strategy='ddp'"
        )
    if not isinstance(error, RuntimeError | NotImplementedError) or not any(sign in str(error) for sign in OUTSIDE):
        return None
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if not frame.f_code.co_filename.startswith(INSIDE_TORCH)]
    parts = {id(part): original_class(model).__name__ for model in models for part in model.modules()}
    for frame in frames:
        owner, method = parts.get(id(_self(frame))), frame.f_code.co_name
        if owner and method != "forward":
            return Unsupported(
                f"{owner}.{method} uses parameters outside forward, where under strategy='fsdp' a rank has a part of each: say "
                f"forward_methods=({method!r},), or use strategy='ddp'"
            )
    return Unsupported(
        f"{_line(frames)} computes with parts of parameters or gradients and with whole tensors, which do not go together under "
        "strategy='fsdp': take tensor.full_tensor(), or use strategy='ddp'"
    )


def _self(frame: FrameType) -> Any:
    return frame.f_locals.get("self")


def _line(frames: list[FrameType]) -> str:
    own = [frame for frame in frames if "torchbus" not in (frame.f_globals.get("__name__") or "")]
    if not own:
        return "something"
    file, number = own[-1].f_code.co_filename, own[-1].f_lineno or 0
    return f"{file}:{number} ({linecache.getline(file, number).strip()})"
