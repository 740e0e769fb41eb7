"""A parameter that was there before its model was divided: what the script still holds of it has no values any more."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torchbus.plugin import Unsupported

GETTER = "__get__"
EMPTIED = [getattr(Tensor, name).__get__ for name in ("grad", "data", "shape")]
KNOWN = (Tensor.__hash__, Tensor.dim, Tensor.__repr__)


class Moved(nn.Parameter):
    """May be given to an optimizer, which gets the part in its place; for anything else it would be wrong without a word."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        harmless = function in KNOWN or (getattr(function, "__name__", "") == GETTER and function not in EMPTIED)
        if not harmless:
            raise Unsupported(
                "a list of parameters that was made before its model was divided (strategy='fsdp') holds nothing any more: make it after the "
                "optimizer, or ask model.parameters() where it is used"
            )
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))


def empty(old: nn.Parameter) -> None:
    """Let the values go."""
    if not isinstance(old, Moved):  # a shared parameter has two names
        old.data = old.data.new_empty(0)
        old.__class__ = Moved
