"""Terms of one loss that weigh differently.

Each is multiplied in the graph, where it is reduced, before the ranks' gradients are averaged.
Terms weigh differently in two cases. Batches of several loaders feed one step, and their shares
differ: every rank knows this locally. Or terms are means over different counts, such as tokens and
samples. Then ranks exchange the counts ahead of the gradients: in the first backwards, and always
once they have differed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle
from torchbus.plugin import Context, Share

from torchbus_device import accelerators
from torchbus_strategy.batches import TrackedBatch
from torchbus_strategy.loss.reading import is_in_full, sums_samples
from torchbus_strategy.loss.terms import Divisors, Measured, Number, Term, WeightedTerms, same
from torchbus_strategy.loss.values import value_of, weigh, weighed

LOOKS = 10
WAITS = 3
"""The first backwards, in which the host waits for a GPU. From then on it looks one later."""
TERMS_AT_MOST = 16
SPREAD = 1e-5  # relative, of squares
HAVE, TERMS, TERMS_SQUARED, RATIO, RATIO_SQUARED, HEAD = range(6)
NUMBERS = HEAD + 2 * TERMS_AT_MOST


class TermWeights:
    """Weighs the terms of a session's losses.

    ``differs``: terms count different things; the same on all ranks. ``alike``: of each term of the
    latest loss, whether all ranks divide it by one number, as far as the host knows.
    ``are_unlike``: the ranks' latest losses have different numbers of terms.
    ``mean``: averages a tensor of ``NUMBERS`` float64 values over ranks, on the session's device.
    """

    def __init__(self, session: Context, mean: Callable[[Tensor], Tensor]) -> None:
        self._session = session
        self._mean = mean
        self.differs = False
        self.alike: list[bool] = []
        self.are_unlike = False
        self._looks = 0
        self._hooks: list[RemovableHandle] = []
        self._pending: tuple[Tensor, accelerators.Event] | None = None

    @property
    def meets(self) -> bool:
        """Whether the ranks exchange their counts in the next backward."""
        return self.differs or self._looks < LOOKS

    def gather(self, found: WeightedTerms | None) -> list[Number] | None:
        """Return how much each term weighs, NaN for a mean over nothing. All ranks call it: one
        collective.

        None: one weight is enough, or the ranks' losses have different terms.
        """
        self._look_at_last()
        self._looks += 1
        reported = torch.tensor(
            _summary(found) if not self._on_device(found) else [0.0] * NUMBERS, dtype=torch.float64
        )
        reported = accelerators.sent(reported, self._session.device)
        if found is not None and self._on_device(found):
            _report_there(reported, found)
        mean = self._mean(reported)
        if self._looks <= WAITS or reported.device.type == "cpu":
            if not self._look(mean.tolist()):
                return None
        elif self._looks <= LOOKS:
            self._pending = (mean.to("cpu", non_blocking=True), accelerators.recorded(mean.device))
        return self._weights(found, mean) if self.differs and found is not None else None

    def _look(self, numbers: list[float]) -> bool:
        """Note whether the terms count different things; return whether they are the same ones."""
        is_one = _is_one(numbers, self._session.world_size)
        self.are_unlike = numbers[TERMS] > 0.0 and not is_one
        both = zip(numbers[HEAD:], numbers[HEAD + TERMS_AT_MOST :], strict=False)
        self.alike = [square - mean * mean <= SPREAD * square for mean, square in both if is_one]
        self.differs |= is_one and _differs(numbers)
        return is_one

    def _look_at_last(self) -> None:
        """Read the GPU's result of the previous backward, which the host did not wait for."""
        if self._pending is not None:
            numbers, copied = self._pending
            self._pending = None
            copied.synchronize()
            self._look(numbers.tolist())

    def _on_device(self, found: WeightedTerms | None) -> bool:
        return (
            found is not None
            and self._looks > LOOKS
            and any(isinstance(count, Tensor) for count in found.counts)
        )

    def _weights(self, found: WeightedTerms, mean: Tensor) -> list[Number]:
        size = len(found.terms)
        counts, squares = (
            mean[HEAD : HEAD + size],
            mean[HEAD + TERMS_AT_MOST : HEAD + TERMS_AT_MOST + size],
        )
        if mean.device.type != "cpu":
            mine = torch.stack(
                [
                    count.to(mean.dtype)
                    if isinstance(count, Tensor)
                    else torch.full((), float(count), dtype=mean.dtype, device=mean.device)
                    for count in _counts(found)
                ]
            )
            return list(
                torch.where(counts == 0.0, 0.0, mine / torch.where(counts == 0.0, 1.0, counts))
            )
        both = zip(found.terms, _counts(found), counts.tolist(), squares.tolist(), strict=True)
        return [
            float(mine) / mean * self._whole(term, mean, square) if mean else math.nan
            for term, mine, mean, square in both
        ]

    def _whole(self, term: Term, mean: float, square: float) -> float:
        """Return the weight of a term: 1, or the number of parts.

        It is the number of parts for a sum that all ranks divide by the number of samples of all.
        What was counted in the batch is not that, even where it is the same number.
        """
        share, parts = self._session.share, self._session.world.data.parts
        alike = square - mean * mean <= SPREAD * square
        constants = term.divisors and not any(
            isinstance(one, Measured | Tensor) for one in term.divisors
        )
        return (
            float(parts)
            if constants and alike and share.count >= 2 * parts and same(mean, share.count)
            else 1.0
        )

    def multiply(self, found: WeightedTerms, weights: Sequence[Number]) -> Number | None:
        """Put the weights into the graph, for the coming backward.

        Returns the weighted loss, if it can be computed. A weight of 0.0 or NaN cuts the graph:
        what is behind it gets no gradient, not even a NaN.
        """
        value = weighed(found.loss, found.terms, weights)
        self._hooks = [
            hook
            for term, weight in zip(found.terms, weights, strict=True)
            if not _is_one_number(weight)
            for hook in weigh(term, weight)
        ]
        return value

    def let_go(self) -> None:
        """Forget the graph, which may be used again."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


def of_one_batch(loss: Tensor, terms: list[Term], rows: int, share: Share) -> WeightedTerms:
    """Return terms that all read the same batch."""
    counts = [rows if term.number is None else term.number for term in terms]
    return WeightedTerms(
        loss, terms, counts, [rows] * len(terms), [share.weight] * len(terms), False
    )


def of_sums(
    loss: Tensor, terms: list[Term], rows: int, share: Share, parts: int
) -> WeightedTerms | None:
    """Return the terms, if some are sums over samples, in full on each rank, beside means over
    samples. None if that is unknown for one of them.
    """
    sums = [sums_samples(term) for term in terms]
    if any(term.node is None for term in terms):
        return None
    if not share.weight:  # the batch only fills in for missing samples
        return WeightedTerms(
            loss, terms, [0.0] * len(terms), [0] * len(terms), [0.0] * len(terms), True
        )
    others = [term for term, is_sum in zip(terms, sums, strict=True) if not is_sum]
    if not rows or not all(is_in_full(term) or _counts_only(rows, term) for term in others):
        return None
    weights = [float(parts) if is_sum else share.weight for is_sum in sums]
    counts: list[Number] = [float(rows)] * len(terms)
    return WeightedTerms(loss, terms, counts, [rows] * len(terms), weights, True, "sums")


def _counts_only(rows: int, term: Term) -> bool:
    return not term.divisors and not isinstance(term.number, Tensor) and term.number == rows


def of_batches(
    loss: Tensor, terms: list[Term], batches: Sequence[TrackedBatch], shares: Sequence[Share]
) -> WeightedTerms:
    """Return terms that read batches of several loaders."""
    counts = [
        one.rows if term.number is None else term.number
        for term, one in zip(terms, batches, strict=True)
    ]
    return WeightedTerms(
        loss, terms, counts, [one.rows for one in batches], [one.weight for one in shares], True
    )


def unique(terms: Sequence[Term]) -> list[Term]:
    """Return each term once. A term that is added up twice has one place in the graph."""
    return list(
        {
            (id(term if term.node is None else term.node), term.place): term for term in terms
        }.values()
    )


def _summary(found: WeightedTerms | None) -> list[float]:
    reported = [0.0] * NUMBERS
    size = len(found.terms) if found is not None and len(found.terms) <= TERMS_AT_MOST else 0
    reported[TERMS], reported[TERMS_SQUARED] = float(size), float(size * size)
    if found is not None and size:
        counts = [float(count) for count in _counts(found)]
        reported[HEAD : HEAD + size] = counts
        reported[HEAD + TERMS_AT_MOST : HEAD + TERMS_AT_MOST + size] = [
            count * count for count in counts
        ]
        ratio = found.ratio() if all(found.weights) else 0.0
        reported[HAVE], reported[RATIO], reported[RATIO_SQUARED] = (
            float(ratio > 0.0),
            ratio,
            ratio * ratio,
        )
    return reported


def _report_there(reported: Tensor, found: WeightedTerms) -> None:
    """Put counts on a GPU into the tensor, without waiting for them."""
    for place, count in enumerate(_counts(found)):
        reported[HEAD + place] = count


def _counts(found: WeightedTerms) -> list[Number]:
    """Return the counts. A batch that only fills in for missing samples counts nothing."""
    both = zip(found.terms, found.counts, found.weights, strict=True)
    return [_unless_clamped(term, count) if weight else 0.0 for term, count, weight in both]


def may_hide_none(term: Term) -> bool:
    """Whether it is a sum over one, maybe a clamp's, of values that the graph has not kept."""
    return bool(_has_one(term.divisors) and math.prod(term.sizes)) and value_of(term) is None


def _has_one(divisors: Divisors) -> bool:
    return any(not isinstance(number, Tensor) and number == 1.0 for number in divisors)


def _unless_clamped(term: Term, count: Number) -> Number:
    """Return the count, or 0 if a clamp has made it 1: ``sum / mask.sum().clamp(min=1)``."""
    if term.divisors and not math.prod(term.sizes):
        return 0.0
    if isinstance(count, Tensor) or not _has_one(term.divisors):
        return count
    value = value_of(term)
    return count if value is None or value != 0 else 0.0


def _is_one(mean: Sequence[float], world_size: int) -> bool:
    """Whether all ranks' losses have the same number of terms, more than one."""
    return mean[TERMS] > 1.0 and mean[TERMS_SQUARED] - mean[TERMS] ** 2 < 0.25 / world_size**2


def _differs(mean: Sequence[float]) -> bool:
    have = mean[HAVE]
    ratio, squared = (mean[RATIO] / have, mean[RATIO_SQUARED] / have) if have else (0.0, 0.0)
    return squared - ratio * ratio > SPREAD * SPREAD * squared


def _is_one_number(weight: Number) -> bool:
    return not isinstance(weight, Tensor) and weight == 1.0
