"""What the checks have found, and what is said of it."""

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
    """With all its elements: that of an embedding may be sparse."""
    return gradient if gradient.layout is torch.strided else gradient.to_dense()


@dataclass
class Findings:
    """Of all checks of a session.

    ``is_sum``: the loss is a sum over samples. ``losses`` tells whether it is, if nobody has said.
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
        """For ``explain``."""
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
        """A drift, on rank 0."""
        self.drifts += 1
        warn(text)


@dataclass(frozen=True)
class Off:
    """A gradient that is off: ``factor`` is by how much all of it is too large, or NaN."""

    name: str
    relative: float
    factor: float


@dataclass
class Judgement:
    """Of the gradients of one backward, tensor by tensor. ``unit``: the coarsest unit roundoff.
    ``value``: the largest one in any gradient.
    """

    unit: float
    terms: int
    value: float
    largest: float = 0.0
    beyond: list[Off] = field(default_factory=list)

    @property
    def allowed(self) -> float:
        """What rounding explains."""
        return rounding.of_sums(self.unit, self.terms)

    @property
    def floor(self) -> float:
        """What rounding leaves of a gradient of nothing."""
        return rounding.of_empty(self.unit, self.terms, self.value)

    def take(self, name: str, found: Tensor, wanted: Tensor) -> None:
        gap = distance(found.flatten(), wanted.flatten(), self.floor)
        self.largest = max(self.largest, gap)
        if not gap <= self.allowed:
            self.beyond.append(Off(name, gap, _factor(found, wanted)))

    def describe(self) -> str:
        """The first tensor, how far it is off, and how many more there are."""
        first, others = self.beyond[0], len(self.beyond) - 1
        times = "" if math.isnan(first.factor) else f", being {first.factor:.3g} times as large"
        more = f", and {others} other tensors too" * bool(others)
        return (
            f"the gradient of {first.name} differs by {first.relative:.1g}{times}{more} (rounding"
            f" explains {self.allowed:.0e})"
        )


def _factor(found: Tensor, wanted: Tensor) -> float:
    """By which all of a gradient is multiplied; NaN if it is another gradient altogether."""
    a, b = found.flatten(), wanted.flatten()
    size = float(b.dot(b))
    factor = float(a.dot(b)) / size if size else math.nan
    return factor if float((a - factor * b).norm()) <= NEAR * float(a.norm()) else math.nan
