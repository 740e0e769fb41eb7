"""What one backward counts, and what that makes of the gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torchbus._loss.graph import Number, Term, same

if TYPE_CHECKING:
    from torchbus._loss.term_weights import Apart

SLOTS = 8
WEIGHT, NORM, COUNTED, ALL, ALL_SQUARED, RATIO, RATIO_SQUARED, HAVE_RATIO = range(SLOTS)
UNTOLD = -1e9
"""As a ratio: nobody can tell which terms are means of what."""


class Count:
    """What one backward counts on this rank.

    ``weight``: multiplies its gradient, and its loss where losses are averaged. ``norm``: the weight of all that this rank's gradients
    hold after it. ``counted``: weights are not those of samples. ``total``: the count over the unit, where it may be the same on all
    ranks. ``ratio``: of the counts of several terms. ``left``: the plugin that has set it divides the gradients itself, by ``scale``, which is
    known after a synchronised backward. ``anew``: gradients from before must be kept apart from what this backward makes. ``apart``: terms
    that may weigh apart. ``value``: the weighted loss, where it is not simply the loss times ``weight``. ``term``: of the loss, by which
    it was counted.
    """

    __slots__ = ("anew", "apart", "counted", "left", "norm", "ratio", "scale", "term", "total", "value", "weight")

    def __init__(self, weight: Number, counted: bool = False, total: Number = 0.0, ratio: float = 0.0, apart: Apart | None = None) -> None:
        self.weight = self.norm = weight
        self.counted, self.total, self.ratio = counted, total, ratio
        self.left = self.anew = False
        self.scale: Number = 1.0
        self.apart = apart
        self.value: Number | None = None
        self.term: Term | None = None

    @property
    def is_zero(self) -> bool:
        """One on a GPU is not looked at: a gradient times zero is what it gives."""
        return isinstance(self.weight, float) and self.weight == 0.0

    def told(self) -> list[Number]:
        """To be averaged over ranks."""
        total, ratio = self.total, 0.0 if self.is_zero and self.ratio > 0.0 else self.ratio
        return [self.weight, self.norm, float(self.counted), total, total * total, ratio, ratio * ratio, float(ratio != 0.0)]


class Scales(NamedTuple):
    """What gradients, and the loss, that were averaged over ranks are to be multiplied by."""

    gradient: Number
    loss: Number


def spread(mean: float, squared: float) -> float:
    """The variance of numbers relative to their mean square."""
    return (squared - mean * mean) / squared if squared else 0.0


def one(scale: float) -> float:
    """Exactly 1.0 where it is that but for rounding."""
    return 1.0 if same(scale, 1.0) else scale
