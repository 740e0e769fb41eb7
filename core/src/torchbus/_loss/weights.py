"""What each rank's, and each batch's, gradient counts: by samples, or by what the loss's own graph has counted.

A rank weighs its gradient by its count over a unit on which all ranks agree. The mean of these weights over ranks tells what everything is
to be divided by. It rides with what ranks tell each other in each backward, so that no collective comes before the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchbus._batches.share import Share
from torchbus._batches.zipped import Behind
from torchbus._loss.common_divisor import CommonDivisor
from torchbus._loss.constant_divisors import ConstantDivisors
from torchbus._loss.count import ALL, ALL_SQUARED, COUNTED, HAVE_RATIO, NORM, RATIO, RATIO_SQUARED, UNTOLD, WEIGHT, Count, Scales, one, spread
from torchbus._loss.graph import UNKNOWN, Divisors, Number, Term, same, terms_of, unless_clamped
from torchbus._loss.messages import HIDDEN, IN_NO_GRAPH, IN_WINDOW, LATE, NO_COUNT, REPEATED, UNLIKE, WORDS, ZIPPED
from torchbus._loss.term_weights import Apart, TermWeights, of_one_batch, unique
from torchbus._session.notices import warn
from torchbus.errors import UsageError

if TYPE_CHECKING:
    from torchbus._session.context import Context

SPREAD = 1e-5  # of squares that are told in float32


class LossWeights:
    """Of the losses of a session. All ranks use it alike. ``mean``: over ranks, of what they tell each other ahead of a backward; in the
    strategy's own way, where ``session.reduce`` might meet another collective."""

    def __init__(self, session: Context, mode: str = "auto", mean: Callable[[Tensor], Tensor] | None = None) -> None:
        self._session = session
        self.mode = mode
        self.unit, self.agreed = 1.0, False
        self._waits = session.device.type == "cpu"
        self._terms: list[Number] = []
        self._ratio = 0.0
        self._sizes: tuple[int, ...] = ()
        self._divisors: Divisors = ()
        self._numbers_of_terms: set[int] = set()
        """That the loss has whatever the number of rows."""
        self.note = ""
        self._said: set[str] = set()
        self._constants = ConstantDivisors(session)
        self._own: Number | None = None
        self._common = CommonDivisor()
        self._each = TermWeights(session, mean or session.reduce)
        self._shared = Share()
        self._behind = Behind(session)
        self._have_met = False

    def of(self, loss: Tensor | None, settles: bool = True, expected: float = 0.0) -> Count:
        """Read the loss's graph. ``settles``: the host will know what the ranks have told before it goes on. Where it does not, on a GPU, ranks
        count by the graph once all of them know that one does. ``expected``: samples of a rank, on the average, if the share does not tell."""
        count = self._of(loss, settles, expected)
        count.anew = self.mode != "samples"  # not by what this rank has found: all ranks must keep earlier gradients apart, or none
        return count

    def of_number(self, number: float, expected: float) -> Count:
        """The loop has said what its loss is a mean of."""
        self._shared = self._session.share
        count = self._weighted(number / (expected * self.unit))
        count.anew, count.term = True, Term("mean", number)
        return self.take(count)

    def take(self, count: Count) -> Count:
        """This backward counts what somebody else has found: the loop, or windows."""
        self._each.let_go()
        term = count.term or UNKNOWN
        self._own, self._divisors, self._sizes = term.number, term.divisors, term.sizes
        return count

    def agree_on_unit(self, count: Count) -> None:
        """At the first backward of windows: how much one sample counts. All ranks call it, once."""
        weight, total = (float(count.weight), float(count.total)) if count.anew else (0.0, 0.0)
        told = torch.tensor([weight, total, total * total], dtype=torch.float64)
        several = self._session.world.data.parts > 1
        mean, whole, squared = (self._session.reduce(told) if several else told).tolist()
        self.unit = mean / self._target(whole > 0.0 and spread(whole, squared) <= SPREAD) or 1.0

    @property
    def meets(self) -> bool:
        """Whether the ranks tell each other anything ahead of the next backward; alike on all of them."""
        return self.mode != "samples" and self._each.meets

    def meet(self, count: Count) -> Count:
        """Before a backward that is synchronised: terms that weigh apart get their weights, in the graph. All ranks call it alike: it is one
        collective in the first backwards, and for good where terms are means over unlike counts; else none."""
        apart = count.apart
        weights = self._each.meet(apart) if self.meets else None
        self._have_met = weights is not None
        if apart is None or (weights is None and not apart.zipped):
            if not self._behind.is_told:
                self._say(ZIPPED.format(self._behind.unlike, IN_NO_GRAPH))
            return count
        if not self._said:
            self.note = WORDS["terms" if weights else "zipped"]
        return self._multiplied(count, apart, weights or apart.weights)

    def _multiplied(self, count: Count, apart: Apart, weights: Sequence[Number]) -> Count:
        self._own = None
        new = Count(1.0, ratio=0.0 if self._have_met else count.ratio)
        value = self._each.multiply(apart, weights)
        new.value, new.anew = apart.loss.detach() * self._session.share.weight if value is None else value, count.anew
        return new

    def _of(self, loss: Tensor | None, settles: bool, expected: float) -> Count:
        self._each.let_go()
        self._own, parts = None, self._session.world.data.parts
        self._shared, apart = self._behind.find(loss, self.mode != "samples", expected > 0.0)
        if apart is not None:
            self._terms = apart.counts
            return Count(self._shared.weight, ratio=0.0 if self.mode == "samples" else apart.ratio(), apart=apart)
        share = self._shared
        rows = round(share.weight * share.count / parts) if share.count else round(expected)
        term, ratio, apart = self._find(loss, rows, not expected and (self._behind.is_told or share.weight > 0.0))
        expected = expected or (share.count / parts if share.count else 1.0)
        if term is None or term.number is None:
            return Count(share.weight, ratio=UNTOLD * (not self._behind.is_told))
        ratio = ratio if self._behind.is_told else UNTOLD
        assert loss is not None
        scale = expected * self.unit
        count = self._weighted(unless_clamped(term, loss) / scale, term.number / scale if term.divisors else 0.0, ratio)
        count.apart, count.term = apart, term
        self.take(count)
        if count.counted:
            self.note = self.note or WORDS["divided" if term.divisors else "elements" if term.sizes else "targets"]
            if not settles and not self._waits and not self.agreed:
                return self.take(Count(share.weight, True))
        return count

    def of_sum(self, loss: Tensor | None) -> Count:
        """A sum over samples, of which every rank's counts in full, but for batches that are there for want of samples."""
        self._each.let_go()
        parts = float(self._session.world.data.parts)
        share, apart = self._behind.find(loss, False, False)
        apart = apart and apart._replace(weights=[parts if weight else 0.0 for weight in apart.weights])
        return Count(parts if share.weight else 0.0, apart=apart)

    def _weighted(self, weight: Number, total: Number = 0.0, ratio: float = 0.0) -> Count:
        by_samples = self._shared.weight
        if not isinstance(weight, Tensor) and same(weight, by_samples):
            return Count(by_samples, False, total, ratio)
        return Count(weight if by_samples else 0.0, True, total, ratio)

    def _find(self, loss: Tensor | None, rows: int, may_meet: bool) -> tuple[Term | None, float, Apart | None]:
        """The term that decides, and a digest of what the others count relative to it."""
        if self.mode == "samples" or loss is None:
            return None, 0.0, None
        terms = terms_of(loss, rows)
        if len(terms) == 1 and terms[0].number is not None:
            return terms[0], 0.0, None
        if len(terms) != rows:
            self._numbers_of_terms.add(len(terms))
        elif rows > 1 and rows not in self._numbers_of_terms and all(_is_divided_by(rows, term) for term in terms):
            return None, 0.0, None  # a mean over samples, each with a term of its own
        if not terms or any(term.number is None for term in terms):
            self._not_told(terms)
            return None, 0.0, None
        first = next((term for term in terms if not term.sizes or term.divisors), terms[0])
        self._terms = numbers = [term.number for term in terms if term.number is not None]
        apart = of_one_batch(loss, unique(terms), rows, self._shared) if may_meet and self._each.meets else None
        if first.number and not any(isinstance(number, Tensor) for number in numbers):
            self._ratio = sum((place + 2) * number / first.number for place, number in enumerate(numbers))  # type: ignore[misc]
        return first, self._ratio, apart

    def _not_told(self, terms: list[Term]) -> None:
        kinds = {term.reduction for term in terms}
        if self.mode == "tokens":
            raise UsageError(NO_COUNT.format(", ".join(sorted(kinds)) or "no graph"))
        if "hidden" in kinds:
            self._say(HIDDEN)

    def state_dict(self) -> dict[str, Any]:
        """What the losses have shown so far, alike on all ranks: a run that goes on from a checkpoint must not learn it anew."""
        found = {"unit": self.unit, "agreed": self.agreed, "ratio": self._ratio, "apart": self._each.apart}
        return found | {"common": self._common.state_dict(), **self._constants.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.unit, self.agreed, self._ratio = state["unit"], state["agreed"], state["ratio"]
        self._each.apart = state.get("apart", False)
        self._constants.load_state_dict(state)
        self._common.load_state_dict(state["common"])

    # After the ranks have told each other ----------------------------------------------------------------------

    def settle(self, mean: Sequence[float], windows: bool = False) -> Scales | None:
        """``mean``: of what all ranks have told, the same on all of them. None: nothing is to be divided."""
        self._each.let_go()
        if self._have_met:
            return None
        have = mean[HAVE_RATIO]
        if mean[RATIO] < 0.0 or (have and spread(mean[RATIO] / have, mean[RATIO_SQUARED] / have) > SPREAD):
            self._unlike(windows)
        same_everywhere = mean[ALL] > 0.0 and spread(mean[ALL], mean[ALL_SQUARED]) <= SPREAD
        alike = self._common.judge(same_everywhere, self._own, self._session.share.count, self._session.world.data.parts)
        if same_everywhere and (odd := self._constants.look(self._own, self._sizes)):
            self._say(odd)
        if self._common.has_counted_repeated:
            self._say(REPEATED)
        if not mean[COUNTED]:
            return None
        self.agreed = True
        target = self._target(alike)
        loss = (mean[ALL] if alike and not windows else mean[WEIGHT]) or math.nan  # as the mean over nothing
        base = (mean[ALL] if alike else mean[NORM]) or 1.0
        if not windows and mean[NORM]:
            self.unit *= base / target
        return Scales(one(target / base), one(target / loss))

    def settle_on_device(self, mean: Tensor, windows: bool = False) -> Scales | None:
        """The same, where nobody waits for the numbers."""
        self._each.let_go()
        if not self.agreed or self._have_met:
            return None
        alike = (mean[ALL] > 0.0) & (mean[ALL_SQUARED] - mean[ALL] ** 2 <= SPREAD * mean[ALL_SQUARED])
        alike = alike & self._common.is_found
        target = torch.where(alike, self._target(not isinstance(self._own, Tensor)), 1.0)
        loss = torch.where(alike, mean[ALL], mean[WEIGHT])
        base = torch.where(alike, mean[ALL], mean[NORM])
        return Scales(*(target / torch.where(value == 0.0, 1.0, value) for value in (base, loss)))

    def _target(self, alike: bool) -> float:
        """The mean weight of what all ranks divide by the same."""
        return self._constants.target(self._own, self._divisors, self._sizes) if alike else 1.0

    def _unlike(self, windows: bool) -> None:
        """Terms count unlike things, which nobody knew before."""
        text = UNLIKE if windows or self._each.apart else LATE
        self._each.apart |= not windows
        if self._behind.unlike:
            return self._say(ZIPPED.format(self._behind.unlike, IN_WINDOW if windows else IN_NO_GRAPH))
        self._say(text.format(", ".join(f"{float(number):g}" for number in self._terms)))

    def _say(self, text: str) -> None:
        if text[:40] not in self._said:
            self._said.add(text[:40])
            self.note = text
            if self._session.is_main:
                warn(text)


def _is_divided_by(rows: int, term: Term) -> bool:
    return any(not isinstance(number, Tensor) and same(number, rows) for number in term.over)
