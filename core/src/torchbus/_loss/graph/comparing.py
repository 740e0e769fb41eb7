"""Where a loss compares samples with each other, so that it is no mean over them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor
from torch.autograd.graph import Node

from torchbus._compat import saved
from torchbus._loss.graph.samples import LINEAR, ORDERING, REDUCING, samples_in, sizes_of

PARTS = ("SliceBackward0", "IndexBackward0")
PRODUCTS = ("MulBackward0", "DotBackward0")


def compares_samples(node: Node, sizes: Sequence[int]) -> bool:
    """Whether it picks, sorts or spreads samples: their largest, their variance."""
    if type(node).__name__ in PARTS:
        node, sizes = node.next_functions[0][0] or node, sizes_of(node, sizes)
    name = type(node).__name__
    if name in LINEAR or name not in (*REDUCING, *ORDERING):
        return False
    return samples_in(node, sizes if name in REDUCING else sizes_of(node, sizes)).related


def has_normalised_weights(node: Node, sizes: Sequence[int]) -> bool:
    """Whether samples are multiplied by numbers that add up to one, or are one on average.

    Those of 0 and 1 are a mask, and equal ones are none.
    """
    if type(node).__name__ not in PRODUCTS:
        return False
    sides = [getattr(node, name, None) for name in (*saved.FACTORS, saved.TENSOR)]
    given = [one for one in sides if isinstance(one, Tensor) and not one.requires_grad]
    weights = given[0].detach() if len(given) == 1 and given[0].is_cpu else None
    if weights is None or weights.dim() != 1 or not weights.is_floating_point():
        return False
    if len(weights) < 2 or (sizes and tuple(sizes) != weights.shape):
        return False
    total, unlike = float(weights.double().sum()), len(set(weights.tolist()) - {0.0, 1.0}) > 1
    return (
        unlike
        and any(math.isclose(total, one, rel_tol=1e-5) for one in (1.0, len(weights)))
        and samples_in(node, weights.shape).dims == (0,)
    )
