"""Torch's errors about DTensors, in words that name the offender and the remedy."""

from __future__ import annotations

import traceback

from torchbus.plugin import Unsupported

from torchbus_strategy import sharding

DTENSORS = "torch.distributed.tensor"


def translate(error: BaseException | None) -> Unsupported | None:
    """What to say instead of torch's own words, if these are about divided tensors."""
    if error is None or not (sharding.has_sign(error) or _is_asserted(error)):
        return sharding.no_entry(error, "that strategy='tp' has divided")
    said = str(error).strip().splitlines() or [type(error).__name__]
    return Unsupported(
        f"{sharding.line_of(error)} computes with a divided parameter or gradient in a way that"
        f" torch does not offer (it says: {said[0]}). Under strategy='tp', take"
        " tensor.full_tensor() there, leave the layer out of the plan, or use strategy='ddp'"
    )


def _is_asserted(error: BaseException) -> bool:
    """Whether it is an assertion of DTensor's own, which has no text."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return (
        isinstance(error, AssertionError)
        and bool(frames)
        and str(frames[-1].f_globals.get("__name__")).startswith(DTENSORS)
    )
