"""What one backward counts, and how that changes the gradients."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from torchbus._loss.apart import Apart
from torchbus._loss.graph.term import Number, Term, same
from torchbus.errors import UsageError

SLOTS = 9
WEIGHT, NORM, COUNTED, ALL, ALL_SQUARED, RATIO, RATIO_SQUARED, HAVE_RATIO, OVER_ONE = range(SLOTS)
MODES = ("auto", "samples", "tokens")  # of loss_weight=
UNTOLD = -1e9
"""As a ratio: nobody can tell which terms are means of what."""


class Count:
    """What one backward counts on this rank.

    ``weight``: multiplies its gradient, and its loss when losses are averaged. ``norm``: the weight
    of everything in this rank's gradients after it. ``counted``: the weights are not those of
    samples. ``total``: the count over the unit, if it may be the same on all ranks. ``ratio``: a
    digest of the counts of several terms. ``left``: the plugin that set it divides the gradients
    itself, by ``scale``, which is known after a synchronised backward. ``anew``: gradients from
    before must be kept apart from this backward's. ``apart``: terms that may weigh differently.
    ``value``: the weighted loss, if it is not the loss times ``weight``. ``term``: the term of the
    loss that was counted.
    """

    __slots__ = (
        "anew",
        "apart",
        "counted",
        "left",
        "norm",
        "ratio",
        "scale",
        "term",
        "total",
        "value",
        "weight",
    )

    def __init__(
        self,
        weight: Number,
        counted: bool = False,
        total: Number = 0.0,
        ratio: float = 0.0,
        apart: Apart | None = None,
    ) -> None:
        self.weight = self.norm = weight
        self.counted, self.total, self.ratio = counted, total, ratio
        self.left = self.anew = False
        self.scale: Number = 1.0
        self.apart = apart
        self.value: Number | None = None
        self.term: Term | None = None

    @property
    def is_zero(self) -> bool:
        """Whether the weight is known to be 0. A tensor on a GPU is not read: times zero is the
        same.
        """
        return isinstance(self.weight, float) and self.weight == 0.0

    def told(self) -> list[Number]:
        """Return the numbers to average over ranks."""
        total, ratio = self.total, 0.0 if self.is_zero and self.ratio > 0.0 else self.ratio
        return [
            self.weight,
            self.norm,
            float(self.counted),
            total,
            total * total,
            ratio,
            ratio * ratio,
            float(ratio != 0.0),
            self._over_one(),
        ]

    def _over_one(self) -> Number:
        """Whether the loss is a sum over one, as it is behind a clamp where there is nothing."""
        if self.term is None or not self.term.divisors:
            return 0.0
        number = self.term.number
        return number == 1 if isinstance(number, Tensor) else float(number == 1.0)


class Scales(NamedTuple):
    """Factors for gradients, and for the loss, after both were averaged over ranks."""

    gradient: Number
    loss: Number


def spread(mean: float, squared: float) -> float:
    """Return the variance of numbers relative to their mean square."""
    return (squared - mean * mean) / squared if squared else 0.0


def one(scale: float) -> float:
    """Return exactly 1.0 for a number that is 1.0 but for rounding."""
    return 1.0 if same(scale, 1.0) else scale


def check_mode(mode: str) -> None:
    """Raise UsageError for another value of ``loss_weight=``."""
    if mode not in MODES:
        raise UsageError(
            f"loss_weight={mode!r} is unknown: use {', '.join(map(repr, MODES[:-1]))} or"
            f" {MODES[-1]!r}"
        )
