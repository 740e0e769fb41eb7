"""Weights the terms of one loss that count differently.

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
from torchbus_strategy.loss.terms import Divisors, Number, Term, WeightedTerms
from torchbus_strategy.loss.units import ConstantDivisors
from torchbus_strategy.loss.values import value_of, weigh, weighed

LOOKS = 10
WAITS = 3
"""The number of first backwards in which the host waits for a GPU.

In later ones it reads the numbers of the previous backward.
"""
TERMS_AT_MOST = 16
SPREAD = 1e-5  # relative spread of squares
HAVE, TERMS, TERMS_SQUARED, RATIO, RATIO_SQUARED, TRAIN, TRAINED, TRAINED_SQUARED = range(8)
"""TRAIN: 1 on ranks whose batch does not only fill in for missing samples; TRAINED: their terms."""
BY_ROW, HEAD = 8, 9
"""BY_ROW: 1 on ranks whose terms may be separate terms of each sample."""
SQUARES, OF_ALL, NUMBERS = (HEAD + kind * TERMS_AT_MOST for kind in (1, 2, 3))


class TermWeights:
    """Weighs the terms of a session's losses.

    The argument ``mean`` averages a tensor of ``NUMBERS`` float64 values over ranks, on the
    session's device.

    ``differs`` says whether terms count different things, and is the same on all ranks. ``alike``
    says of each term of the latest loss whether all ranks divide it by one number, as far as the
    host knows. ``constants`` finds out for each term whether one process divides by such a number
    too. ``are_unlike`` says whether the ranks' latest losses have different numbers of terms, and
    ``are_by_row`` whether these differ because each sample has separate terms.
    """

    def __init__(self, session: Context, mean: Callable[[Tensor], Tensor]) -> None:
        self._session = session
        self._mean = mean
        self.differs = False
        self.alike: list[bool] = []
        self.constants = [ConstantDivisors(session) for _ in range(TERMS_AT_MOST)]
        self.are_unlike = self.are_by_row = False
        self._looks = 0
        self._hooks: list[RemovableHandle] = []
        self._pending: tuple[Tensor, accelerators.Event, list[Number | None]] | None = None

    @property
    def gathers(self) -> bool:
        """Whether the ranks exchange their counts in the next backward."""
        return self.differs or self._looks < LOOKS

    def gather(self, found: WeightedTerms | None, by_row: int) -> list[Number] | None:
        """Return how much each term weighs, NaN for a mean over nothing.

        All ranks call it, and it runs one collective. It returns None if one weight is enough, or
        if the ranks' losses have different terms. ``by_row`` is the number of terms, if they may be
        separate terms of each sample, and 0 otherwise.
        """
        self._look_at_last()
        self._looks += 1
        reported = torch.tensor(
            self._summary(found, by_row) if not self._on_device(found) else [0.0] * NUMBERS,
            dtype=torch.float64,
        )
        reported = accelerators.sent(reported, self._session.device)
        if found is not None and self._on_device(found):
            _report_there(reported, found)
        mean = self._mean(reported)
        if self._looks <= WAITS or reported.device.type == "cpu":
            if not self._look(mean.tolist(), _numbers(found)):
                return None
        elif self._looks <= LOOKS:
            copied = mean.to("cpu", non_blocking=True)
            self._pending = copied, accelerators.recorded(mean.device), _numbers(found)
        return self._weights(found, mean) if self.differs and found is not None else None

    def may_be_of_all(self, terms: Sequence[Term]) -> list[bool]:
        """Whether each of the terms may be a sum over a constant that counts samples."""
        return [
            seen.may_be_of_all(term.number, term.divisors, term.sizes)
            for term, seen in zip(terms, self.constants, strict=False)
        ]

    def _summary(self, found: WeightedTerms | None, by_row: int) -> list[float]:
        reported = [0.0] * NUMBERS
        size = len(found.terms) if found is not None and len(found.terms) <= TERMS_AT_MOST else 0
        each = size + (found is not None and found.has_penalty)
        reported[TERMS], reported[TERMS_SQUARED] = float(each), float(each * each)
        if self._session.share.weight if found is None else any(found.weights):
            terms = by_row or each
            reported[TRAIN], reported[TRAINED : TRAINED_SQUARED + 1] = 1.0, [terms, terms * terms]
            reported[BY_ROW] = float(by_row > 0)
        if found is not None and size:
            counts = [float(count) for count in _counts(found)]
            reported[HEAD : HEAD + size] = counts
            reported[SQUARES : SQUARES + size] = [count * count for count in counts]
            reported[OF_ALL : OF_ALL + size] = map(float, self.may_be_of_all(found.terms))
            ratio = found.ratio() if all(found.weights) else 0.0
            reported[HAVE], reported[RATIO] = float(ratio > 0.0), ratio
            reported[RATIO_SQUARED] = ratio * ratio
        return reported

    def _look(self, mean: list[float], numbers: Sequence[Number | None]) -> bool:
        """Note whether the terms count different things; return whether all ranks have several
        terms, and the same number of them.

        ``numbers`` are the numbers by which this rank's terms are divided.
        """
        is_one = _is_one(mean, self._session.world_size)
        differ = not is_one and _are_unlike(mean)
        self.are_by_row = differ and mean[BY_ROW] == mean[TRAIN]
        self.are_unlike = differ and not self.are_by_row
        both = zip(mean[HEAD:SQUARES], mean[SQUARES:OF_ALL], strict=True)
        self.alike = [square - one * one <= SPREAD * square for one, square in both if is_one]
        self.differs |= is_one and _differs(mean)
        for place, (is_alike, agreed) in enumerate(zip(self.alike, mean[OF_ALL:], strict=False)):
            if is_alike and agreed == 1.0:
                self.differs = True
                self.constants[place].note(numbers[place] if place < len(numbers) else None)
        return is_one

    def _look_at_last(self) -> None:
        """Read the GPU's result of the previous backward, which the host did not wait for."""
        if self._pending is not None:
            mean, copied, numbers = self._pending
            self._pending = None
            copied.synchronize()
            self._look(mean.tolist(), numbers)

    def _on_device(self, found: WeightedTerms | None) -> bool:
        return (
            found is not None
            and self._looks > LOOKS
            and any(isinstance(count, Tensor) for count in found.counts)
        )

    def _weights(self, found: WeightedTerms, mean: Tensor) -> list[Number]:
        if found.note == "sums":
            return list(found.weights)
        weights = _relative(_counts(found), mean[HEAD : HEAD + len(found.terms)])
        for place, (term, seen) in enumerate(zip(found.terms, self.constants, strict=False)):
            if (whole := seen.target(term.number)) != 1.0:
                weights[place] = whole if found.weights[place] else 0.0
            elif _is_nan(weights[place]):
                weights[place] = _of_no_count(term, found.weights[place])
        return weights

    def multiply(self, found: WeightedTerms, weights: Sequence[Number]) -> Number | None:
        """Put the weights into the graph, for the coming backward.

        Returns the weighted loss, or None if it can't be computed. A weight of 0.0 or NaN cuts the
        graph: what is below the term gets no gradient, not even a NaN.
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
        """Remove the weights from the graph, which may be used again."""
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
    """Return the terms of a loss that adds sums over samples to means over samples.

    The sums are in full on each rank. None if a term is unknown, or is neither.
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


def _numbers(found: WeightedTerms | None) -> list[Number | None]:
    return [] if found is None else [term.number for term in found.terms]


def _relative(mine: Sequence[Number], mean: Tensor) -> list[Number]:
    """Return the counts over their mean over ranks."""
    if mean.device.type == "cpu":
        both = zip(mine, mean.tolist(), strict=True)
        return [float(count) / of_all if of_all else math.nan for count, of_all in both]
    there = [
        count.to(mean.dtype)
        if isinstance(count, Tensor)
        else torch.full((), float(count), dtype=mean.dtype, device=mean.device)
        for count in mine
    ]
    nothing = mean == 0.0
    return list(torch.where(nothing, 0.0, torch.stack(there) / torch.where(nothing, 1.0, mean)))


def _report_there(reported: Tensor, found: WeightedTerms) -> None:
    """Put counts on a GPU into the tensor, without waiting for them."""
    for place, count in enumerate(_counts(found)):
        reported[HEAD + place] = count


def _counts(found: WeightedTerms) -> list[Number]:
    """Return the counts. A batch that only fills in for missing samples counts nothing."""
    both = zip(found.terms, found.counts, found.weights, strict=True)
    return [_unless_clamped(term, count) if weight else 0.0 for term, count, weight in both]


def may_hide_none(term: Term) -> bool:
    """Whether a term is a sum over one, perhaps a clamp's, of values that the graph lacks."""
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


def _are_unlike(mean: Sequence[float]) -> bool:
    """Whether the losses of the ranks that train have different numbers of terms."""
    terms, squared = (mean[place] / (mean[TRAIN] or 1.0) for place in (TRAINED, TRAINED_SQUARED))
    return squared - terms * terms > SPREAD * squared


def _differs(mean: Sequence[float]) -> bool:
    have = mean[HAVE]
    ratio, squared = (mean[RATIO] / have, mean[RATIO_SQUARED] / have) if have else (0.0, 0.0)
    return squared - ratio * ratio > SPREAD * SPREAD * squared


def _is_nan(weight: Number) -> bool:
    return not isinstance(weight, Tensor) and math.isnan(weight)


def _of_no_count(term: Term, weight: float) -> float:
    """Return the weight of a term that counts nothing on any rank: NaN, unless it is clamped."""
    if not weight:  # the batch only fills in for missing samples
        return 0.0
    return 1.0 if term.is_over_one is True else math.nan


def _is_one_number(weight: Number) -> bool:
    return not isinstance(weight, Tensor) and weight == 1.0
