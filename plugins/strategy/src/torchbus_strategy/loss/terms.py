"""The terms of a loss, and what each counts in the mean over ranks."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torchbus.plugin import UsageError


class Coefficient(float):
    """What a factor would be as a divisor. Below 1, it can't be a count."""


class Measured(float):
    """A divisor that was a tensor: counted in the batch, not a constant of the script."""


Number = float | Tensor  # a tensor if it is on a GPU: reading it would make the host wait
Divisors = tuple[Number, ...]


@dataclass(slots=True)
class Term:
    """One of the terms that a loss adds up.

    Attributes:
        reduction: "mean", "sum", "unknown", "hidden" (the graph of a compiled function),
            "nonlinear" (a function of sums and means, such as a root or a ratio, or of the order of
            samples), "normalised" or "standardised" (a sample's weight depends on the others).
        number: How many things the term is a mean of, None if unknown.
        divisors: The numbers by which the loop has divided a sum. Their product is ``number``.
        sizes: The shape of what was reduced.
        over: The numbers by which the loop has divided a mean once more.
        node: The node that reduces the term, None if unknown.
        place: The index of the term, if the node makes a vector.
    """

    reduction: str
    number: Number | None = None
    divisors: Divisors = ()
    sizes: tuple[int, ...] = ()
    over: Divisors = ()
    node: Node | None = field(default=None, compare=False, repr=False)
    place: int | None = field(default=None, compare=False, repr=False)

    @property
    def is_local(self) -> bool:
        """Whether the divisor may have been counted in this rank's samples: it was a tensor, or is
        the number of elements that were summed.
        """
        elements = [*accumulate(self.sizes, operator.mul)]
        return any(
            isinstance(one, Measured)
            or (not isinstance(one, Tensor) and any(same(one, mine) for mine in elements))
            for one in self.divisors
        )

    @property
    def is_over_one(self) -> bool | Tensor:
        """Whether the term is a sum divided by one, apart from constant factors.

        This is a tensor of one element if the host does not have the number.
        """
        if not self.divisors:
            return False
        if isinstance(self.number, Tensor):
            return self.number == 1
        known = [one for one in self.divisors if not isinstance(one, Tensor)]
        return 1.0 in known and not any(one > 1.0 and one == int(one) for one in known)

    @property
    def reduced_by(self) -> Node:
        """Return the term's node. Only known terms, which have one, are weighted."""
        assert self.node is not None
        return self.node


# never changed
UNKNOWN, NONLINEAR = Term("unknown"), Term("nonlinear")
NORMALISED, STANDARDISED = Term("normalised"), Term("standardised")


def same(a: float, b: float) -> bool:
    """Whether two counts are equal. They may have been exchanged in float32."""
    return math.isclose(a, b, rel_tol=1e-6)


def weighted(loss: Number, weight: Number | None) -> Number:
    """Return a loss times its rank's weight: zero without samples, even if the loss is NaN."""
    if isinstance(weight, Tensor):
        return torch.where(weight == 0.0, 0.0, loss * weight)
    return loss * weight if weight else 0.0


class WeightedTerms(NamedTuple):
    """The terms of a loss.

    Attributes:
        loss: The loss, a tensor of one element.
        terms: Its terms.
        counts: How many things each term is a mean of on this rank.
        rows: The rows of the batch behind each term.
        weights: The weight of each term, by the samples of that batch.
        zipped: Whether the weights differ: a step has several loaders, or adds sums to means.
        note: The key of the text that ``explain`` prints.
        has_penalty: Whether a function of the parameters is added to the only term.
    """

    loss: Tensor
    terms: list[Term]
    counts: list[Number]
    rows: list[int]
    weights: list[float]
    zipped: bool
    note: str = "zipped"
    has_penalty: bool = False

    def ratio(self) -> float:
        """Return a digest of what the terms count for each sample, relative to each other.

        It is the same on all ranks if samples are the right weights. If ``zipped``, it is not
        relative.
        """
        each = [
            float(count) / max(rows, 1) for count, rows in zip(self.counts, self.rows, strict=True)
        ]
        whole = 1.0 if self.zipped else sum(each)
        # with factors 2, 3, 4 in place of squares, n would not change the mean of counts n, B, n
        return (
            sum((place + 2) ** 2 * one for place, one in enumerate(each)) / whole if whole else 0.0
        )


SLOTS = 12
(
    WEIGHT,
    NORM,
    COUNTED,
    ALL,
    ALL_SQUARED,
    RATIO,
    RATIO_SQUARED,
    HAVE_RATIO,
    OVER_ONE,
    CLAMPED,
    MAY_BE_CLAMPED,
    LOCAL,
) = range(SLOTS)
MODES = ("auto", "samples", "tokens")  # of loss_weight=
UNREPORTED = -1e9
"""The ratio where it is unknown which batch each term is a mean over."""


class Count:
    """What one backward counts on this rank.

    Attributes:
        weight: Multiplies the gradient, and the loss when losses are averaged.
        norm: The weight of everything in this rank's gradients after this backward.
        counted: Whether the weights differ from those by samples.
        total: The count over the unit, if it may be the same on all ranks.
        ratio: A digest of the counts of several terms.
        left: Whether the plugin that set this multiplies the gradients by ``scale`` itself.
        scale: The factor of the gradients, which is known after a synchronised backward.
        isolated: Whether earlier gradients must stay separate from this backward's.
        weighted_terms: Terms that may weigh differently.
        weights: The weights of these terms, if the loss has a ``value``.
        value: The weighted loss, if it is not the loss times ``weight``.
        term: The term of the loss that was counted.
        metadata: What this rank sends, if that is known already.
        is_clamped: Whether the loss is a sum in full, divided by one because there was nothing to
            count. It has a weight, and a ``norm`` of 0.
        may_be_clamped: Whether the loss is divided by one, and the graph does not show why.
    """

    __slots__ = (
        "counted",
        "is_clamped",
        "isolated",
        "left",
        "may_be_clamped",
        "metadata",
        "norm",
        "ratio",
        "scale",
        "term",
        "total",
        "value",
        "weight",
        "weighted_terms",
        "weights",
    )

    def __init__(
        self,
        weight: Number,
        counted: bool = False,
        total: Number = 0.0,
        ratio: float = 0.0,
        weighted_terms: WeightedTerms | None = None,
    ) -> None:
        self.weight = self.norm = weight
        self.counted, self.total, self.ratio = counted, total, ratio
        self.left = self.isolated = self.is_clamped = False
        self.may_be_clamped: Number = 0.0
        self.scale: Number = 1.0
        self.weighted_terms = weighted_terms
        self.weights: Sequence[Number] = ()
        self.value: Number | None = None
        self.term: Term | None = None
        self.metadata: list[Number] | None = None

    def copied(self) -> Count:
        """Return a copy that may be changed."""
        made = copy(self)
        made.metadata = None
        return made

    @property
    def is_zero(self) -> bool:
        """Whether the weight is known to be 0.

        A tensor on a GPU is not read. Multiplying by it gives the same result if it is 0.
        """
        return isinstance(self.weight, float) and self.weight == 0.0

    def to_metadata(self) -> list[Number]:
        """Return the numbers to average over ranks."""
        if self.metadata is not None:
            return self.metadata
        total, ratio = self.total, self.ratio
        if ratio > 0.0 and self.is_zero:
            ratio = 0.0
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
            float(self.is_clamped),
            self.may_be_clamped,
            float(self.term is not None and self.term.is_local and not self.is_zero),
        ]

    def _over_one(self) -> Number:
        """Whether the loss is a sum divided by one, as it is behind a clamp of a zero count."""
        over_one = False if self.term is None else self.term.is_over_one
        return over_one if isinstance(over_one, Tensor) else float(over_one)


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
