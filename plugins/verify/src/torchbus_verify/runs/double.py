"""Double precision for a script that was not written for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torchbus.tree import map_tensors

from torchbus_verify._compat import DATA_ITERATOR

SINGLE = (torch.float32,)
FLOAT = "float"


def install() -> None:
    """New tensors, batches of loaders and inputs of modules are float64 where they would be
    float32.
    """
    torch.set_default_dtype(torch.float64)
    for name in ("float32", "float"):
        setattr(torch, name, torch.float64)
    for cls in (Tensor, torch.nn.Module):
        setattr(cls, FLOAT, cls.double)
    for name in ("tensor", "as_tensor", "from_numpy"):
        setattr(torch, name, _widened(getattr(torch, name)))
    take = DATA_ITERATOR.__next__
    DATA_ITERATOR.__next__ = lambda iterator: _wide(take(iterator))
    widen: Any = lambda module, inputs: tuple(_wide(one) for one in inputs)  # noqa: E731
    register_module_forward_pre_hook(widen)


def _widened(make: Callable[..., object]) -> Callable[..., object]:
    return lambda *args, **kwargs: _wide(make(*args, **kwargs))


def _wide(value: Any) -> Any:
    wrapped = getattr(value, "batch", None)
    if wrapped is not None and not isinstance(value, Tensor | list | tuple | dict):
        value.batch = _wide(wrapped)  # in the sampler's wrapping
        return value
    return map_tensors(value, lambda one: one.double() if one.dtype in SINGLE else one)
