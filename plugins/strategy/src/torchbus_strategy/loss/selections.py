"""Whether a loss has left out some samples, or positions of them: what is left is not counted by
samples, even where the numbers are equal.
"""

from __future__ import annotations

from typing import Any

import torch

from torchbus_strategy import compat
from torchbus_strategy.graph import nodes_below

NODES_AT_MOST = 20_000


def leaves_some(root: Any) -> bool:
    """Whether the graph below selects by a mask or by numbers, or ignores targets."""
    return any(map(_selects, nodes_below([root], NODES_AT_MOST)))


def _selects(node: Any) -> bool:
    name = type(node).__name__
    if name == "IndexBackward0":  # one of each sample, as in ``z[torch.arange(len(z)), y]``
        first = next(one for one in compat.indices(node) if one is not None)
        return not torch.equal(first, torch.arange(len(first), device=first.device))
    ignored = getattr(node, compat.IGNORED, None)
    if ignored is not None:
        ignores = (compat.target(node) == compat.signed(ignored)).any()
        return bool(ignores) or compat.weight(node) is not None
    return name in ("IndexSelectBackward0", "MaskedSelectBackward0")
