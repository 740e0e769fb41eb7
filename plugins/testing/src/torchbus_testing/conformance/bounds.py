"""How far a loop of the kit may be from one process, if only sums are in another order."""

from __future__ import annotations

from torchbus_strategy.checks import rounding

TERMS = 256
"""No element of a gradient of the kit's loops sums more."""
STEPS = 16
"""No loop of the kit makes more."""


def of_values(unit: float) -> float:
    """The largest relative difference that rounding explains at the end of a loop."""
    return rounding.of_sums(unit, TERMS, STEPS)


def of_movement(unit: float) -> float:
    """The same for how far parameters have moved, if only single values are rounded.

    So it is under autocast: sums are float32, and each gradient is rounded separately.
    """
    return rounding.of_sums(unit, 1)


def of_zero(bound: float) -> float:
    """What rounding leaves of a zero, as a part of the other values: one sum, of one step."""
    return bound / rounding.of_sums(1.0, 1, STEPS)
