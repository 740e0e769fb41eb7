"""What torch refuses under fsdp, in words that name the offender and the remedy."""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, NoReturn

import torch
from torch.nn import Module
from torchbus.errors import Unsupported

from torchbus_sharded.engine import original_class, units_in

OUTSIDE = ("mixed torch.Tensor and DTensor", "sharding strategy", "Sharding propagation failed")
COPIES = ("__deepcopy__", "__reduce_ex__")
INSIDE_TORCH = torch.__path__[0]


def refuse_copies(model: Module) -> Callable[[], None]:
    """For ``copy.deepcopy(model)`` and ``pickle``, ``torch.save(model)`` with it; returns what takes it back."""
    name = original_class(model).__name__
    units = [vars(unit) for unit in units_in(model)]
    for attributes in units:
        attributes |= {"__deepcopy__": lambda memo: _no_copy(name), "__reduce_ex__": lambda protocol: _no_pickle(name)}
    return lambda: [attributes.pop(each, None) for attributes in units for each in COPIES] and None


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


def translate(error: BaseException | None, models: Iterable[Module]) -> Unsupported | None:
    """What to say instead of torch's own words, where they are about divided tensors."""
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
