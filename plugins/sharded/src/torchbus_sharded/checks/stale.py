"""Stale parameters: the script holds them from before their model was divided.

They have no values any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn
from torchbus.plugin import Unsupported

from torchbus_sharded._compat.tensors import as_plain_tensors

GETTER = "__get__"
EMPTIED = [getattr(Tensor, name).__get__ for name in ("grad", "data", "shape")]
KNOWN = (Tensor.__hash__, Tensor.dim, Tensor.__repr__, Tensor.untyped_storage)


class StaleParameter(nn.Parameter):
    """May be given to an optimizer, which gets the part in its place. Other uses are refused.

    They would be wrong without a message.
    """

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        harmless = function in KNOWN or (
            getattr(function, "__name__", "") == GETTER and function not in EMPTIED
        )
        if not harmless:
            raise Unsupported(
                "a list of parameters that was made before its model was divided (strategy='fsdp')"
                " is empty now: make it after the optimizer, or call model.parameters() when you"
                " need it"
            )
        with as_plain_tensors():
            return function(*args, **(kwargs or {}))


def empty(old: nn.Parameter) -> None:
    """Let the values go."""
    if not isinstance(old, StaleParameter):  # a shared parameter has two names
        old.data = old.data.new_empty(0)
        old.__class__ = StaleParameter
