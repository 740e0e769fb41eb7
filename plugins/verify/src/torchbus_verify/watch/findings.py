"""Findings of the checks, and their messages."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torchbus.plugin import warn

from torchbus_strategy.checks import rounding
from torchbus_strategy.loss.weights import LossWeights
from torchbus_verify.compare.difference import distance

Gradients = dict[str, Tensor]
SHOWN = 3
NEAR = 1e-3


def dense(gradient: Tensor) -> Tensor:
    """Return a dense gradient: an embedding's may be sparse."""
    return gradient if gradient.layout is torch.strided else gradient.to_dense()


@dataclass
class Findings:
    """Findings of all checks of a session. ``is_sum``: the loss is a sum over samples.

    ``losses`` decides whether it is, if the user has not said so.
    """

    is_sum: bool = False
    losses: LossWeights | None = None
    checks: int = 0
    last: int = 0
    largest: float = 0.0
    drifts: int = 0
    left_out: list[str] = field(default_factory=list)

    def leave_out(self, why: str) -> None:
        if why not in self.left_out:
            self.left_out.append(why)

    def lines(self, every: int) -> list[str]:
        """Return the summary for ``explain``."""
        seen = (
            f"{self.checks} backwards so far, the last in step {self.last}; {self.drifts} drifted;"
            f" largest difference {self.largest:.0e}"
            if self.checks
            else "none so far"
        )
        lines = [f"every {every} steps, rank 0 computes the gradients of all ranks: {seen}"]
        return lines + [f"not checked: {why}" for why in self.left_out[:SHOWN]]

    def record(self, step: int, *judgements: Judgement) -> None:
        self.checks, self.last = self.checks + 1, step
        self.largest = max([self.largest, *(one.largest for one in judgements)])

    def warn(self, text: str) -> None:
        """Report a drift, on rank 0."""
        self.drifts += 1
        warn(text)


@dataclass(frozen=True)
class Off:
    """A wrong gradient. ``factor``: by which all of it is too large, or NaN."""

    name: str
    relative: float
    factor: float


@dataclass
class Judgement:
    """Tolerances for the gradients of one backward.

    ``unit``: the coarsest unit roundoff. ``value``: the largest element of any gradient.
    """

    unit: float
    terms: int
    value: float
    largest: float = 0.0
    beyond: list[Off] = field(default_factory=list)

    @property
    def allowed(self) -> float:
        """Return the difference that rounding explains."""
        return rounding.of_sums(self.unit, self.terms)

    @property
    def floor(self) -> float:
        """Return the possible rounding residue of a gradient that is zero."""
        return rounding.of_empty(self.unit, self.terms, self.value)

    def take(self, name: str, found: Tensor, wanted: Tensor) -> None:
        gap = distance(found.flatten(), wanted.flatten(), self.floor)
        self.largest = max(self.largest, gap)
        if not gap <= self.allowed:
            self.beyond.append(Off(name, gap, _factor(found, wanted)))

    def describe(self) -> str:
        """Describe the first wrong tensor, its error, and the number of others."""
        first, others = self.beyond[0], len(self.beyond) - 1
        times = "" if math.isnan(first.factor) else f", being {first.factor:.3g} times as large"
        more = f", and {others} other tensors too" * bool(others)
        return (
            f"the gradient of {first.name} differs by {first.relative:.1g}{times}{more} (rounding"
            f" explains {self.allowed:.0e})"
        )


def _factor(found: Tensor, wanted: Tensor) -> float:
    """Return the factor by which all of a gradient is multiplied; NaN for a different gradient."""
    a, b = found.flatten(), wanted.flatten()
    size = float(b.dot(b))
    factor = float(a.dot(b)) / size if size else math.nan
    return factor if float((a - factor * b).norm()) <= NEAR * float(a.norm()) else math.nan
