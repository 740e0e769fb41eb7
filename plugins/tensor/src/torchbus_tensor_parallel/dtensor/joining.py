"""``torch.cat`` of a divided tensor and one of no elements, such as a cache's first one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchbus_strategy import sharding


def join(
    operator: Callable[..., object], arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> object:
    """Leave out what torch ignores in a cat of whole tensors, whatever its shape."""
    kept = [one for one in arguments[0] if one.dim() != 1 or one.numel()]
    with sharding.torchs_own(operator):
        return operator(kept or arguments[0], *arguments[1:], **keywords)


JOINS: dict[object, Callable[..., object]] = {torch.ops.aten.cat.default: join}
