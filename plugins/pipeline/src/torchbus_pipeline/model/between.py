"""What a layer returns to a loop over layers: nothing is computed before the last one is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torchbus.plugin import Unsupported

from torchbus_pipeline._compat import as_plain_tensors

FACTS = ("dtype", "device", "requires_grad", "is_cuda", "is_sparse", "is_nested")


class Between(torch.Tensor):
    """May be given to the next layer, and to nothing else."""

    torchbus_after: str

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        name = getattr(function, "__name__", "")
        owner = getattr(getattr(function, "__self__", None), "__name__", "")
        if name == "__hash__" or (name == "__get__" and owner in FACTS):
            with as_plain_tensors():
                return function(*args, **(kwargs or {}))
        found = [one for one in args if isinstance(one, Between)]
        after = found[0].torchbus_after if found else "a layer"
        raise Unsupported(
            f"{owner if name == '__get__' else name} of what {after} returns, before the last of"
            " the layers is called: strategy='pipeline' computes layers on other ranks, so what one"
            " returns can only go into the next one, and no connection may skip a layer; name"
            " another list with blocks=, or use strategy='ddp'"
        )


def after(layer: str, x: Tensor) -> Between:
    """What to return for a layer that ``x`` went into."""
    made = x.detach().as_subclass(Between)
    made.torchbus_after = layer
    return made
