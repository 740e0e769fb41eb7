"""Torch's errors about divided tensors, and where the loop has come to them."""

from __future__ import annotations

import linecache
import traceback
from types import FrameType

import torch
from torch.distributed.tensor import DTensor

from torchbus.errors import Unsupported

SIGNS = (
    "mixed torch.Tensor and DTensor",
    "sharding strategy",
    "Sharding propagation failed",
    "the local_tensor argument only accepts torch.Tensor but got",
)
INSIDE_TORCH = torch.__path__[0]


def has_sign(error: BaseException | None, *more: str) -> bool:
    """Whether torch says that an operation can't take divided tensors, or one of ``more``."""
    return isinstance(error, RuntimeError | NotImplementedError) and any(
        sign in str(error) for sign in (*SIGNS, *more)
    )


def no_entry(error: BaseException | None, which: str) -> Unsupported | None:
    """What to say of a dict that lacks a divided parameter. ``which`` one, in words."""
    if not (isinstance(error, KeyError) and error.args and isinstance(error.args[0], DTensor)):
        return None
    return Unsupported(
        f"a dict has no entry for a parameter {which}: it was made with the earlier parameters."
        " Make it after the optimizer, or use strategy='ddp'"
    )


def places_of(error: BaseException) -> list[tuple[FrameType, int]]:
    """The frames outside of torch, the outermost first, each with its line."""
    return [
        (frame, number)
        for frame, number in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith(INSIDE_TORCH)
    ]


def line_of(error: BaseException) -> str:
    """The line of the loop that failed. Its frame may have gone on since."""
    own = [
        (frame.f_code.co_filename, number)
        for frame, number in places_of(error)
        if "torchbus" not in (frame.f_globals.get("__name__") or "")
    ]
    if not own:
        return "something"
    file, number = own[-1]
    return f"{file}:{number} ({linecache.getline(file, number).strip()})"
