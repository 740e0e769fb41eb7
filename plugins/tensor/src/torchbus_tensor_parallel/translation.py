"""Torch's errors about DTensors, in words that name the offender and the remedy."""

from __future__ import annotations

import linecache
import traceback
from types import TracebackType

import torch
from torch.distributed.tensor import DTensor
from torchbus.plugin import Unsupported

SIGNS = (
    "mixed torch.Tensor and DTensor",
    "Sharding propagation failed",
    "does not have a sharding strategy registered",
    "the local_tensor argument only accepts torch.Tensor but got",
)
DTENSORS = "torch.distributed.tensor"
INSIDE_TORCH = torch.__path__[0]


def translate(error: BaseException | None) -> Unsupported | None:
    """What to say instead of torch's own words, if these are about divided tensors."""
    if isinstance(error, KeyError) and error.args and isinstance(error.args[0], DTensor):
        return Unsupported(
            "a dict has no entry for a parameter that strategy='tp' has divided: it was made with"
            " the earlier parameters. Make it after the optimizer, or use strategy='ddp'"
        )
    if error is None or not _is_about_dtensors(error):
        return None
    said = str(error).strip().splitlines() or [type(error).__name__]
    return Unsupported(
        f"{_line(error.__traceback__)} computes with a divided parameter or gradient in a way that"
        f" torch does not offer (it says: {said[0]}). Under strategy='tp', take"
        " tensor.full_tensor() there, leave the layer out of the plan, or use strategy='ddp'"
    )


def _is_about_dtensors(error: BaseException) -> bool:
    if isinstance(error, AssertionError):
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        return bool(frames) and str(frames[-1].f_globals.get("__name__")).startswith(DTENSORS)
    is_torchs = isinstance(error, RuntimeError | NotImplementedError)
    return is_torchs and any(sign in str(error) for sign in SIGNS)


def _line(trace: TracebackType | None) -> str:
    """The last line of the loop's own code. Its frame may have gone on since."""
    own = [
        (frame.f_code.co_filename, number)
        for frame, number in traceback.walk_tb(trace)
        if not frame.f_code.co_filename.startswith(INSIDE_TORCH)
        and "torchbus" not in str(frame.f_globals.get("__name__"))
    ]
    if not own:
        return "something"
    file, number = own[-1]
    return f"{file}:{number} ({linecache.getline(file, number).strip()})"
