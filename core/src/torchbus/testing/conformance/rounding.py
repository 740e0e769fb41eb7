"""How far two runs of the kit may be apart if nothing but the order of their sums differs.

A sum of n terms in arithmetic with unit roundoff u is off by at most ``LAMBDA * sqrt(n) * u``, as a
part of its terms, with a probability of 1 - 2n exp(-LAMBDA**2 / 2) (Higham and Mary, 2019). Two
runs may be off by that to both sides, and each step adds as much.
"""

from __future__ import annotations

import math

import torch

LAMBDA = 8.0
TERMS = 256
"""No element of a gradient of the kit's loops sums more."""
STEPS = 16
"""No loop of the kit makes more."""


def unit(dtype: torch.dtype) -> float:
    """Half the distance of 1 to the next number."""
    return torch.finfo(dtype).eps / 2


def of_values(unit: float) -> float:
    """The largest relative difference that rounding explains at the end of a loop."""
    return 2 * LAMBDA * math.sqrt(TERMS) * unit * (STEPS + 1)


def of_movement(unit: float) -> float:
    """The same for how far parameters have moved, if only single values are rounded.

    So it is under autocast: sums are float32, and each gradient is rounded by itself.
    """
    return 2 * LAMBDA * unit


def of_zero(bound: float) -> float:
    """What rounding leaves of a zero, as a part of the other values: one sum, of one step."""
    return bound / (2 * LAMBDA * (STEPS + 1))
