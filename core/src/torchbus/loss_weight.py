"""What each rank's, and each batch's, gradient counts: by samples, or by what the loss's own graph has counted.

A rank weighs its gradient by its count over a unit on which all ranks agree. The mean of these weights over ranks tells what everything is
to be divided by. It rides with what ranks tell each other in each backward, so that no collective comes before the gradients.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torchbus.common_divisor import CommonDivisor
from torchbus.errors import UsageError
from torchbus.loss_graph import Divisors, Number, Term, same, terms_of
from torchbus.loss_words import HIDDEN, NEITHER, NO_COUNT, REPEATED, UNLIKE, WORDS
from torchbus.notices import warn

if TYPE_CHECKING:
    from torchbus.session import Session

MODES = ("auto", "samples", "tokens")
SLOTS = 7
WEIGHT, NORM, COUNTED, ALL, ALL_SQUARED, RATIO, RATIO_SQUARED = range(SLOTS)
SPREAD = 1e-5  # of squares that are told in float32
ALIKE_FOR = 3


class Count:
    """What one backward counts on this rank.

    ``weight``: multiplies its gradient, and its loss where losses are averaged. ``norm``: the weight of all that this rank's gradients
    hold after it. ``counted``: weights are not those of samples. ``total``: the count over the unit, where it may be the same on all
    ranks. ``ratio``: of the counts of several terms. ``left``: the plugin that has set it divides the gradients itself, by ``scale``, which is
    known after a synchronised backward. ``anew``: gradients from before must be kept apart from what this backward makes.
    """

    __slots__ = ("anew", "counted", "left", "norm", "ratio", "scale", "total", "weight")

    def __init__(self, weight: Number, counted: bool = False, total: Number = 0.0, ratio: float = 0.0) -> None:
        self.weight = self.norm = weight
        self.counted, self.total, self.ratio = counted, total, ratio
        self.left = self.anew = False
        self.scale: Number = 1.0

    @property
    def is_zero(self) -> bool:
        """One on a GPU is not looked at: a gradient times zero is what it gives."""
        return isinstance(self.weight, float) and self.weight == 0.0

    def told(self) -> list[Number]:
        """To be averaged over ranks."""
        total, ratio = self.total, self.ratio
        return [self.weight, self.norm, float(self.counted), total, total * total, ratio, ratio * ratio]


class Scales(NamedTuple):
    """What gradients, and the loss, that were averaged over ranks are to be multiplied by."""

    gradient: Number
    loss: Number


class LossWeights:
    """Of the losses of a session. All ranks use it alike."""

    def __init__(self, session: Session, mode: str = "auto") -> None:
        self._session = session
        self.mode = mode
        self.unit = 1.0
        self.agreed = False
        self._waits = session.device.type == "cpu"
        self._terms: list[Number | None] = []
        self._ratio = 0.0
        self._sizes: tuple[int, ...] = ()
        self._divisors: Divisors = ()
        self._numbers_of_terms: set[int] = set()
        """That the loss has whatever the number of rows."""
        self.note = ""
        self._said: set[str] = set()
        self._constants: set[float] = set()
        self._own: Number | None = None
        self._alike = 0
        self._before = 0.0
        self._common = CommonDivisor()

    def of(self, loss: Tensor | None, settles: bool = True, expected: float = 0.0) -> Count:
        """Read the loss's graph. ``settles``: the host will know what the ranks have told before it goes on. Where it does not, on a GPU, ranks
        count by the graph once all of them know that one does. ``expected``: samples of a rank, on the average, if the share does not tell."""
        count = self._of(loss, settles, expected)
        count.anew = self.mode != "samples"  # not by what this rank has found: all ranks must keep earlier gradients apart, or none
        return count

    def of_number(self, number: float, expected: float) -> Count:
        """The loop has said what its loss is a mean of."""
        self._own = number
        count = self._weighted(number / (expected * self.unit))
        count.anew = True
        return count

    def _of(self, loss: Tensor | None, settles: bool, expected: float) -> Count:
        share, parts = self._session.share, self._session.world.data.parts
        rows = round(share.weight * share.count / parts) if share.count else round(expected)
        expected = expected or (share.count / parts if share.count else 1.0)
        self._own = None
        term, ratio = self._find(loss, rows)
        if term is None or term.number is None:
            return Count(share.weight)
        assert loss is not None
        self._own, self._divisors, self._sizes = term.number, term.divisors, term.sizes
        scale = expected * self.unit
        count = self._weighted(_unless_clamped(term, loss) / scale, term.number / scale if term.divisors else 0.0, ratio)
        if count.counted:
            self.note = self.note or WORDS["divided" if term.divisors else "elements" if term.sizes else "targets"]
            if not settles and not self._waits and not self.agreed:
                return Count(share.weight, True)
        return count

    def _weighted(self, weight: Number, total: Number = 0.0, ratio: float = 0.0) -> Count:
        by_samples = self._session.share.weight
        if not isinstance(weight, Tensor) and same(weight, by_samples):
            return Count(by_samples, False, total, ratio)
        return Count(weight if by_samples else 0.0, True, total, ratio)

    def _find(self, loss: Tensor | None, rows: int) -> tuple[Term | None, float]:
        """The term that decides, and a digest of what the others count relative to it."""
        if self.mode == "samples" or loss is None:
            return None, 0.0
        terms = terms_of(loss, rows)
        if len(terms) == 1 and terms[0].number is not None:
            return terms[0], 0.0
        if len(terms) != rows:
            self._numbers_of_terms.add(len(terms))
        elif rows > 1 and rows not in self._numbers_of_terms and all(_is_divided_by(rows, term) for term in terms):
            return None, 0.0  # a mean over samples, each with a term of its own
        if not terms or any(term.number is None for term in terms):
            self._not_told(terms)
            return None, 0.0
        first = next((term for term in terms if not term.sizes or term.divisors), terms[0])
        self._terms = [term.number for term in terms]
        if any(isinstance(term.number, Tensor) for term in terms) or not first.number:
            return first, self._ratio
        self._ratio = sum((place + 2) * term.number / first.number for place, term in enumerate(terms))  # type: ignore[operator, misc]
        return first, self._ratio

    def _not_told(self, terms: list[Term]) -> None:
        kinds = {term.reduction for term in terms}
        if self.mode == "tokens":
            raise UsageError(NO_COUNT.format(", ".join(sorted(kinds)) or "no graph"))
        if "hidden" in kinds:
            self._say(HIDDEN)

    def state_dict(self) -> dict[str, Any]:
        """What the losses have shown so far, alike on all ranks: a run that goes on from a checkpoint must not learn it anew."""
        found = {"unit": self.unit, "agreed": self.agreed, "ratio": self._ratio, "constants": sorted(self._constants)}
        return found | {"common": self._common.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.unit, self.agreed, self._ratio, self._constants = state["unit"], state["agreed"], state["ratio"], set(state["constants"])
        self._common.load_state_dict(state["common"])

    # After the ranks have told each other ----------------------------------------------------------------------

    def settle(self, mean: Sequence[float], windows: bool = False) -> Scales | None:
        """``mean``: of what all ranks have told, the same on all of them. None: nothing is to be divided."""
        if mean[RATIO] and _spread(mean[RATIO], mean[RATIO_SQUARED]) > SPREAD:
            self._say(UNLIKE.format(", ".join(f"{float(number):g}" for number in self._terms if number is not None)))
        same_everywhere = mean[ALL] > 0.0 and _spread(mean[ALL], mean[ALL_SQUARED]) <= SPREAD
        alike = self._common.judge(same_everywhere, self._own, self._session.share.count, self._session.world.data.parts)
        if self._common.has_counted_repeated:
            self._say(REPEATED)
        if same_everywhere and self._alike < ALIKE_FOR:
            self._look_at_constant()
        if not mean[COUNTED]:
            return None
        self.agreed = True
        target = self._target(alike)
        loss = (mean[ALL] if alike else mean[WEIGHT]) or math.nan  # as the mean over nothing
        base = (mean[ALL] if alike and not windows else mean[NORM]) or 1.0
        if not windows and mean[NORM]:
            self.unit *= base / target
        return Scales(_one(target / base), _one(target / loss))

    def settle_on_device(self, mean: Tensor, windows: bool = False) -> Scales | None:
        """The same, where nobody waits for the numbers."""
        if not self.agreed:
            return None
        alike = (mean[ALL] > 0.0) & (mean[ALL_SQUARED] - mean[ALL] ** 2 <= SPREAD * mean[ALL_SQUARED])
        alike = alike & self._common.is_found
        target = torch.where(alike, self._target(not isinstance(self._own, Tensor)), 1.0)
        loss = torch.where(alike, mean[ALL], mean[WEIGHT])
        base = mean[NORM] if windows else torch.where(alike, loss, mean[NORM])
        return Scales(*(target / torch.where(value == 0.0, 1.0, value) for value in (base, loss)))

    def _target(self, alike: bool) -> float:
        """The mean weight of what all ranks divide by the same: 1 for a loss that is normalised over ranks already; as many as there are parts
        for one that all of them divide by the number of samples of all."""
        own, share, parts = self._own, self._session.share, self._session.world.data.parts
        if not alike or own is None or isinstance(own, Tensor) or not share.count:
            return 1.0
        if share.count >= 2 * parts and self._divides_by(share.count):
            self._constants.add(own)  # all ranks have rows of their own, so it is not one rank's number
        if own in self._constants:
            return float(parts)
        return 1.0

    def _look_at_constant(self) -> None:
        """Say so where all ranks divide by the same all the time, and it is no number of samples."""
        own, share = self._own, self._session.share
        if own is None or isinstance(own, Tensor) or not share.count:
            return
        rows = round(share.weight * share.count / self._session.world.data.parts)
        known = same(own, rows) or same(own, share.count) or own in self._constants or own in accumulate(self._sizes, operator.mul)
        self._alike = self._alike + 1 if own == self._before and not known else 0
        self._before = own
        if self._alike == ALIKE_FOR:
            self._say(NEITHER.format(own, rows, share.count))

    def _divides_by(self, count: int) -> bool:
        """Whether the loss is a sum over so many. Where the script does not give its whole batch to be divided, it may also be the number of
        elements that were summed on this rank."""
        found = any(not isinstance(number, Tensor) and same(number, count) for number in self._divisors)
        whole = any(getattr(plugin, "divides_own_batch", False) for _, plugin in self._session.bus.plugins())
        return found and (whole or isinstance(self._session.share.indices, range) or count not in accumulate(self._sizes, operator.mul))

    def _say(self, text: str) -> None:
        if text[:40] not in self._said:
            self._said.add(text[:40])
            self.note = text
            if self._session.is_main:
                warn(text)


def _is_divided_by(rows: int, term: Term) -> bool:
    return any(not isinstance(number, Tensor) and same(number, rows) for number in term.over)


def _unless_clamped(term: Term, loss: Tensor) -> Number:
    """``sum / mask.sum().clamp(min=1)`` where nothing is left by the mask: a loss of zero over one, which counts nothing."""
    number = term.number
    if isinstance(number, Tensor):
        return torch.where((number == 1) & (loss.detach() == 0), 0, number) if term.divisors else number
    assert number is not None
    return 0.0 if term.divisors and number == 1.0 and not loss.item() else number


def _spread(mean: float, squared: float) -> float:
    """The variance of numbers relative to their mean square."""
    return (squared - mean * mean) / squared if squared else 0.0


def _one(scale: float) -> float:
    return 1.0 if same(scale, 1.0) else scale
