"""The weights of the ranks' losses in the mean: samples, tokens or what the graph divides by."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from torch import Tensor
from torchbus.plugin import Context, Share, UsageError

from torchbus_strategy import compat
from torchbus_strategy.batches import only_evaluate
from torchbus_strategy.loss import messages
from torchbus_strategy.loss.clamped import Clamps, unless_clamped
from torchbus_strategy.loss.messages import BY_KIND, COMPARES, MIXED, SILENT, SUM_BESIDE, TIMES_ROWS
from torchbus_strategy.loss.reading import (
    is_elsewhere,
    is_sum,
    relates_samples,
    sums_samples,
    terms_of,
)
from torchbus_strategy.loss.repeated import RepeatedLosses
from torchbus_strategy.loss.term_samples import are_apart
from torchbus_strategy.loss.term_weights import (
    TERMS_AT_MOST,
    TermWeights,
    of_one_batch,
    of_sums,
    unique,
)
from torchbus_strategy.loss.terms import (
    HAVE_RATIO,
    MAY_BE_CLAMPED,
    RATIO,
    RATIO_SQUARED,
    UNTOLD,
    Coefficient,
    Count,
    Number,
    Scales,
    Term,
    WeightedTerms,
    same,
    spread,
)
from torchbus_strategy.loss.units import SPREAD, ConstantDivisors, Unit
from torchbus_strategy.loss.walks import decomposes_samples, is_made_zero
from torchbus_strategy.multi_loader import LossSources
from torchbus_strategy.user_code import warn_of_gradients

ALIKE_FOR = 3
"""Losses in a row with the number of rows as a factor, until it is not a coincidence."""
LOOKS = 5
"""First losses in which samples that are compared are looked for: the graph must be walked."""
READ_AT_MOST = 3
"""Losses that are looked at if a count is on a GPU, for which the host must wait."""
ALL_ALIKE = 1.0
"""As a ratio: all terms are divided by one number, however many there are."""


class Deciding:
    """Finds the deciding term, and remembers the latest loss.

    ``numbers``: the counts of its terms, if it had several. ``ratio``: a digest of these counts
    relative to the deciding one. ``parts``: of the global batch. ``sums``: a sum over samples is
    summed over ranks.
    """

    def __init__(self, parts: int, sums: bool) -> None:
        self._parts, self._sums = parts, sums
        self.numbers: list[Number] = []
        self.ratio = 0.0
        self.hidden: set[str] | None = None
        """Kinds of the terms whose counts are not in the graph; None if all are."""
        self.mixed = 0.0
        """What one term counts, while another's count is not in the graph."""
        self.is_sum = self.is_empty = False
        """That it is a plain sum over samples; that it reaches none."""
        self.beside: WeightedTerms | None = None
        """Its terms, if sums over samples stand beside means over them."""
        self.has_sums = False
        """That it has such sums, and other terms."""
        self._compares = False
        self._looks_left = LOOKS
        self._elsewhere = False
        """Some loss had its samples in another dimension than the first."""
        self._by_rows = 0
        self._numbers_of_terms: set[tuple[str, int]] = set()
        """That a loss of this kind has whatever the number of rows."""

    @property
    def looks(self) -> bool:
        """Whether the graph is asked which dimension holds the samples: see ``Counted``."""
        return self._looks_left > 0 or self._elsewhere

    def find(
        self,
        loss: Tensor,
        terms: list[Term],
        rows: int,
        share: Share,
        may_sync: bool,
        meets: bool,
    ) -> tuple[Term | None, float, WeightedTerms | None]:
        """Return the deciding term, the digest, and the terms that may weigh differently."""
        self.hidden, self.mixed, self.beside = None, 0.0, None
        self._elsewhere |= any(map(is_elsewhere, terms))
        self.is_sum, self.is_empty = is_sum(terms), not terms
        self._look_between(loss, terms, rows)
        if self.is_sum:
            return None, 0.0, None
        self.has_sums = self._sums and any(map(sums_samples, terms))
        if self.has_sums and may_sync:
            self.beside = of_sums(loss, unique(terms), rows, share, self._parts)
        if self.beside is not None:
            return None, 0.0, self.beside
        if len(terms) == 1 and terms[0].number is not None:
            return terms[0], 0.0, None
        if terms and all(_is_one_of(len(terms), term) for term in terms):
            return replace(terms[0], number=float(len(terms))), 0.0, None
        if self._has_one_for_each_row(type(loss.grad_fn).__name__, terms, rows):
            self._compares = False
            return None, 0.0, None
        if not terms or any(term.number is None for term in terms):
            self.hidden = {term.reduction for term in terms}
            self.mixed = next((number for number in map(_counted, terms) if number), 0.0)
            if not rows or same(self.mixed, rows):
                self.mixed = 0.0
            return None, 0.0, None
        first = next((term for term in terms if not term.sizes or term.divisors), terms[0])
        self.numbers = [term.number for term in terms if term.number is not None]
        may_gather = may_sync and meets
        weighted = of_one_batch(loss, unique(terms), rows, share) if may_gather else None
        known = [float(number) for number in self.numbers if not isinstance(number, Tensor)]
        if len(known) == len(self.numbers) and len(set(known)) == 1:
            self.ratio = ALL_ALIKE
        elif first.number and len(known) == len(self.numbers):
            weighed = sum((place + 2) * number for place, number in enumerate(known))
            self.ratio = weighed / float(first.number)
        return first, self.ratio, weighted

    def _look_between(self, loss: Tensor, terms: list[Term], rows: int) -> None:
        """Look, in the first losses, whether samples are compared with each other."""
        if self._looks_left:
            self._looks_left -= 1
            self._compares = any(map(relates_samples, terms)) or (
                rows > 0 and decomposes_samples(loss)
            )

    def warnings(self, term: Term | None, rows: int) -> list[str]:
        """Return what is to be said of the latest loss, whose deciding term is ``term``."""
        kinds = [BY_KIND[kind] for kind in sorted(self.hidden or ()) if kind in BY_KIND]
        mixed = [MIXED.format(self.mixed, rows)] if self.mixed else []
        mixed += [SUM_BESIDE] if self.has_sums and self.beside is None else []
        times = [TIMES_ROWS.format(rows)] if self._has_rows_as_factor(term, rows) else []
        between = [COMPARES] if self._compares and not kinds else []
        return [*kinds, *mixed, *times, *between]

    def _has_rows_as_factor(self, term: Term | None, rows: int) -> bool:
        """Whether the loop has multiplied the last losses, which are means, by this rank's rows."""
        found = term is not None and not term.divisors and rows > 1
        by_rows = found and any(_is(number, 1 / rows) for number in (term.over if term else ()))
        self._by_rows = self._by_rows + 1 if by_rows else 0
        return self._by_rows == ALIKE_FOR

    def _has_one_for_each_row(self, kind: str, terms: list[Term], rows: int) -> bool:
        """Whether the loss is a mean over samples, each with separate terms."""
        if not rows:  # not counted, or the batch only fills in for missing samples
            return False
        if not terms or len(terms) % rows:
            self._numbers_of_terms.add((kind, len(terms)))
            return False
        return (
            rows > 1
            and (kind, len(terms)) not in self._numbers_of_terms
            and all(_is_divided_by(rows, term) for term in terms)
            and are_apart(terms, rows)
        )


def _is_one_of(count: int, term: Term) -> bool:
    """Whether it is one thing in a mean over so many, as in ``sum(losses) / len(losses)``."""
    is_one = term.number is not None and _is(term.number, 1.0)
    return is_one and not term.divisors and _is_divided_by(count, term)


def _is_divided_by(rows: int, term: Term) -> bool:
    """Whether a mean, or a sum over something else, is divided by this number once more."""
    counts = [one for one in term.divisors if not isinstance(one, Coefficient)]
    return any(_is(number, rows) for number in (*term.over, *(counts if len(counts) > 1 else ())))


def _counted(term: Term) -> float:
    """Return the count of a term with a separate count, if the host has it."""
    known = not isinstance(term.number, Tensor | None) and (not term.sizes or term.divisors)
    return float(term.number or 0.0) if known else 0.0


def _is(number: Number, other: float) -> bool:
    return not isinstance(number, Tensor) and same(number, other)


class BySamples:
    """Looks at losses that are weighted by samples, because their backward communicates nothing."""

    def __init__(self, session: Context) -> None:
        self._session = session
        self._before: list[float] | None = None
        self._looks = 0
        self._has_found = False

    def look(self, loss: Tensor | None) -> str:
        """Return a warning, once, if this rank's loss shows that samples are the wrong weight."""
        rows = self._rows()
        if self._has_found or loss is None or not rows:
            return ""
        terms = terms_of(loss, round(rows))
        self._looks += 1
        if self._looks > READ_AT_MOST and any(isinstance(term.number, Tensor) for term in terms):
            return ""
        counted = [(term, float(term.number)) for term in terms if term.number is not None]
        numbers = [number for _, number in counted]
        constant = any(_is_a_constant(term, number, rows) for term, number in counted)
        self._has_found = constant or self._differs([number / rows for number in numbers])
        return SILENT.format(self._describe(numbers, rows)) if self._has_found else ""

    def _differs(self, ratios: list[float]) -> bool:
        """Whether the terms count otherwise for each sample than those of the loss before."""
        before, self._before = self._before, ratios
        return (
            before is not None and len(before) == len(ratios) and not all(map(same, before, ratios))
        )

    def _rows(self) -> float:
        share = self._session.share
        return share.weight * share.count / self._session.world.data.parts if share.count else 1.0

    def _describe(self, numbers: list[float], rows: float) -> str:
        counts = ", ".join(f"{number:g}" for number in numbers)
        return f"{counts} for {rows:g} samples on rank {self._session.rank}"


def _is_known(term: Term) -> bool:
    """Whether the host has its numbers. It does not wait for those on a GPU."""
    return not any(isinstance(one, Tensor) for one in (term.number, *term.divisors, *term.over))


def _is_a_constant(term: Term, number: float, rows: float) -> bool:
    """Whether a sum is divided by something that is no number of the things that were summed."""
    if not term.divisors or not term.sizes:
        return False
    return not any(same(number, count) for count in (rows, *accumulate(term.sizes, operator.mul)))


class LossWeights:
    """The weights of a session's losses. All ranks call each method.

    ``mean``: averages over ranks what they exchange ahead of a backward. A strategy passes its own
    way if ``session.reduce`` might meet another collective. ``sums``: a loss that is a plain sum
    over samples, as its graph says, is summed over ranks; without, it counts as a mean. Losses are
    tensors of one element; other shapes have no count.
    """

    def __init__(
        self,
        session: Context,
        mode: str = "auto",
        mean: Callable[[Tensor], Tensor] | None = None,
        sums: bool = False,
    ) -> None:
        compat.check()
        self._session = session
        self.mode = mode
        self._sums = sums
        self._may_reduce = mean is None
        self._first = 0  # an id: a count that is held would keep the graph alive
        self._has_unit = False
        self._unit = Unit(session)
        self._waits = session.device.type == "cpu"
        self._deciding = Deciding(session.world.data.parts, sums)
        self._clamps = Clamps()
        self._constants = [ConstantDivisors(session) for _ in range(TERMS_AT_MOST)]
        self.note = ""
        self._said: set[str] = set()
        self._repeated = RepeatedLosses()
        self._each = TermWeights(session, mean or session.reduce)
        self._shared = Share()
        self._sources = LossSources(session)
        self._silent = BySamples(session)
        self._have_met = False

    def read(
        self, loss: Tensor | None, expected: float = 0.0, share: Share | None = None
    ) -> list[Term]:
        """Return the terms of a loss; none if samples weigh it. ``expected``: see ``of``."""
        if loss is None or self.mode == "samples":
            return []
        rows = self._rows(share or self._session.share, expected)
        return terms_of(loss, rows, self._deciding.looks)

    def of(
        self,
        loss: Tensor | None,
        settles: bool = True,
        expected: float = 0.0,
        terms: list[Term] | None = None,
    ) -> Count:
        """Read the loss's graph, and return what this backward counts.

        ``settles``: the host will know the ranks' numbers before it goes on. On a GPU it does not;
        then ranks count by the graph once all of them know that one does. ``expected``: average
        number of samples of a rank, if the share does not say. ``loss``: of one element.
        ``terms``: what ``read`` has returned for it.
        """
        if len(self._session.batches.current) > 1:  # each has a share
            terms = None
        elif terms is None:
            terms = self.read(loss, expected)
        settles = settles or self._waits or self._unit.settles_on_device
        count, self._first = self._usual(terms, expected, settles), 0
        if count is None:
            count = self._look(loss, settles, expected, terms)
            # the same on all ranks: all must separate earlier gradients, or none
            count.isolated = self.mode != "samples"
            self._first = 0 if self._has_unit else id(count)
            self._repeated.note(count)
        return count

    def is_usual(self, count: Count) -> bool:
        """Whether it is that of many losses before."""
        return count is self._repeated.usual

    def of_number(self, number: float, expected: float) -> Count:
        """Return the count of a loss that is a mean of ``number`` things, as the loop says."""
        self._shared = self._session.share
        count = self._weighted(number / (expected * self._unit.value))
        count.isolated, count.term = True, Term("mean", number)
        return self.take(count)

    def _rows(self, share: Share, expected: float) -> int:
        parts = self._session.world.data.parts
        return round(share.weight * share.count / parts) if share.count else round(expected)

    def _usual(self, terms: list[Term] | None, expected: float, settles: bool) -> Count | None:
        """Return the count of a loss like many before, if the host has its numbers."""
        session = self._session
        is_known = self._waits or (terms is not None and all(map(_is_known, terms)))
        if terms is None or not is_known or (self._each.meets and not expected):
            self._repeated.forget()
            return None
        current = session.batches.current
        evaluates = bool(current and current[0].origin.evaluates)
        others = expected, self._unit.value, session.world.data.parts, evaluates, settles
        return self._repeated.count(terms, session.share, others)

    def take(self, count: Count) -> Count:
        """Use a count that the loop or a window has found."""
        self._repeated.forget()
        return self._use(count)

    def _use(self, count: Count) -> Count:
        self._each.let_go()
        self._unit.take(count.term)
        return count

    def by_samples(self, loss: Tensor | None) -> Count:
        """Return the count of a backward that communicates nothing, or follows such a one.

        The other ranks' counts are unknown. Warns if the loss does not count samples. ``loss``: of
        one element.
        """
        if self.are_sum(self.read(loss)):
            self._repeated.forget()
            return self.of_sum(loss)
        if self.mode != "samples" and (text := self._silent.look(loss)):
            self._say(text)
        return self.take(Count(self._session.share.weight))

    def agree_on_unit(self, count: Count) -> None:
        """Agree on what one sample counts. All ranks call it once, at the first of windows."""
        self._unit.agree(count)

    def _begin(self, count: Count) -> None:
        """Agree on the unit before the first backward of batches that no loader has counted.

        Without, the gradients of tensors that no optimizer holds would be multiplied by the rows.
        """
        self._first, self._has_unit = 0, True
        if self._session.share.count:
            return
        self.agree_on_unit(Count(0.0) if self._deciding.is_sum else count)
        by = self._unit.value
        count.weight, count.norm, count.total = count.weight / by, count.norm / by, count.total / by

    @property
    def meets(self) -> bool:
        """Whether the ranks exchange numbers ahead of the next backward; equal on all ranks."""
        return self.mode != "samples" and self._each.meets

    def weigh_terms(self, count: Count) -> Count:
        """Put weights into the graph for terms that weigh differently.

        All ranks call it before a synchronised backward. It is one collective in the first
        backwards, and always if terms are means over different counts. Otherwise it is none.
        """
        if self.is_usual(count):
            return count
        if id(count) == self._first and self.meets and self._may_reduce:
            self._begin(count)
        terms = count.weighted_terms
        weights = self._each.gather(terms) if self.meets else None
        self._have_met = weights is not None
        self._look_at_constants(terms)
        if terms is None or (weights is None and not terms.zipped):
            if not self._sources.is_reported:
                self._say(messages.ZIPPED.format(self._sources.unlike, messages.IN_NO_GRAPH))
            return count
        if not self._said:
            self.note = messages.NOTES["terms" if weights else terms.note]
        return self._multiplied(count, terms, weights or terms.weights)

    def _look_at_constants(self, found: WeightedTerms | None) -> None:
        """Ask about sums over samples that the loop multiplies by a constant, beside means."""
        terms = [] if found is None or found.zipped else found.terms
        for term, alike, seen in zip(terms, self._each.alike, self._constants, strict=False):
            if term.divisors and alike and term.is_over_one is False:
                facts = term.number, term.divisors, term.sizes
                self._say(seen.look(*facts, messages.TIMES_CONSTANT))

    def _multiplied(self, count: Count, terms: WeightedTerms, weights: Sequence[Number]) -> Count:
        self._unit.reset()
        new = Count(1.0, ratio=0.0 if self._have_met else count.ratio)
        new.may_be_clamped = float(count.is_clamped) or count.may_be_clamped
        if self._have_met:
            new.may_be_clamped = float(self._clamps.may_hide_none(terms))
        if self._have_met and new.may_be_clamped:
            self._say(messages.MAY_BE_NONE)
        value = self._each.multiply(terms, weights)
        if value is not None:
            new.weighted_terms, new.weights = terms, weights
        elif terms.note == "sums":
            self._say(messages.SHOWN_TOO_SMALL)
        new.value = terms.loss.detach() * self._session.share.weight if value is None else value
        new.isolated = count.isolated
        return new

    def _look(
        self, loss: Tensor | None, settles: bool, expected: float, read: list[Term] | None
    ) -> Count:
        self._each.let_go()
        self._unit.reset()
        if only_evaluate(self._session.batches.current):
            return Count(1.0)
        parts = self._session.world.data.parts
        self._shared, terms = self._sources.find(loss, self.mode != "samples", expected > 0.0)
        if terms is not None:
            self._deciding.numbers = terms.counts
            ratio = 0.0 if self.mode == "samples" else terms.ratio()
            return Count(self._shared.weight, ratio=ratio, weighted_terms=terms)
        share = self._shared
        rows = self._rows(share, expected)
        may_sync = not expected and (self._sources.is_reported or share.weight > 0.0)
        if read is None or share is not self._session.share:
            read = self.read(loss, expected, share)
        term, ratio, terms = self._find(loss, rows, may_sync, read)
        expected = expected or (share.count / parts if share.count else 1.0)
        if self._sums and self.mode != "samples" and self._deciding.is_sum:
            self.note = self.note or messages.SUM
            return self.of_sum(loss)
        if self._deciding.beside is not None:
            return Count(share.weight, ratio=1.0, weighted_terms=self._deciding.beside)
        if loss is not None and self._is_empty(loss):
            return self._of_empty()
        if loss is None or term is None or term.number is None:
            return Count(share.weight, ratio=UNTOLD * (not self._sources.is_reported))
        ratio = ratio if self._sources.is_reported else UNTOLD
        scale = expected * self._unit.value
        count = self._weighted(
            unless_clamped(term, loss) / scale, term.number / scale if term.divisors else 0.0, ratio
        )
        count.weighted_terms, count.term = terms, term
        self._clamps.mark(count, read, loss, rows)
        self._use(count)
        return self._in_time(count, term, settles) if count.counted else count

    def _is_empty(self, loss: Tensor) -> bool:
        """Whether it is a zero that reaches no sample: a branch for a batch without objects."""
        if self.mode == "samples" or not self._deciding.is_empty or loss.numel() != 1:
            return False
        return not loss.item() and is_made_zero(loss)

    def _of_empty(self) -> Count:
        count = Count(0.0, True)
        count.term = Term("mean", 1.0, (1.0,))
        self._unit.reset()
        return count

    def _in_time(self, count: Count, term: Term, settles: bool) -> Count:
        """The count, or one by samples if the host does not wait for what other ranks count."""
        kind = "divided" if term.divisors else "elements" if term.sizes else "targets"
        self.note = self.note or messages.NOTES[kind]
        return count if settles else self._use(Count(self._shared.weight, True))

    def are_sum(self, terms: Sequence[Term]) -> bool:
        """Whether a loss with these terms is one that is summed over ranks."""
        return self._sums and is_sum(terms)

    def of_sum(self, loss: Tensor | None) -> Count:
        """Return the count of a sum over samples.

        It is in full, unless this rank's batch only fills in for missing samples. Tensors are of
        one element.
        """
        self._each.let_go()
        current = self._session.batches.current
        parts = 1.0 if only_evaluate(current) else float(self._session.world.data.parts)
        share, terms = self._sources.find(loss, False, False)
        terms = terms and terms._replace(
            weights=[parts if weight else 0.0 for weight in terms.weights]
        )
        return Count(parts if share.weight else 0.0, weighted_terms=terms)

    def _weighted(self, weight: Number, total: Number = 0.0, ratio: float = 0.0) -> Count:
        by_samples = self._shared.weight
        if not isinstance(weight, Tensor) and same(weight, by_samples):
            return Count(by_samples, False, total, ratio)
        return Count(weight if by_samples else 0.0, True, total, ratio)

    def _find(
        self, loss: Tensor | None, rows: int, may_sync: bool, terms: list[Term]
    ) -> tuple[Term | None, float, WeightedTerms | None]:
        self._deciding.is_sum = self._deciding.is_empty = self._deciding.has_sums = False
        self._deciding.beside = None
        if self.mode == "samples" or loss is None:
            return None, 0.0, None
        found = self._deciding.find(loss, terms, rows, self._shared, may_sync, self._each.meets)
        hidden = self._deciding.hidden
        if hidden is not None and self.mode == "tokens":
            raise UsageError(messages.NO_COUNT.format(", ".join(sorted(hidden)) or "no graph"))
        for text in self._deciding.warnings(found[0], rows):
            self._say(text)
        return found

    def state_dict(self) -> dict[str, object]:
        """Return the facts about the losses so far, the same on all ranks, for checkpoints.

        A resumed run must not learn them again.
        """
        mine = {"ratio": self._deciding.ratio, "apart": self._each.differs}
        return mine | self._unit.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the unit and the weights of a checkpoint. All ranks call it."""
        self._deciding.ratio = state["ratio"]
        self._each.differs = state.get("apart", False)
        self._unit.load_state_dict(state)
        self._repeated.forget()

    def have_counted(self) -> None:
        """Note that some rank has counted by a graph, as the ranks have found elsewhere."""
        self._unit.agreed = True

    # After the exchange --------------------------------------------------------------------------

    def is_settled(self, mean: Sequence[float]) -> bool:
        """Whether ``resolve`` would return None, as for many losses before."""
        return self._repeated.is_settled(mean)

    def resolve(self, mean: Sequence[float], windows: bool = False) -> Scales | None:
        """Return the factors for gradients and loss, or None to change nothing.

        ``mean``: the mean over ranks of what each has sent, the same on all of them.
        """
        if self._repeated.changes_nothing(mean):
            return None
        self._each.let_go()
        if self._have_met:
            if mean[MAY_BE_CLAMPED] > 0.0:
                self._say(messages.MAY_BE_NONE)
            return None
        have = mean[HAVE_RATIO]
        if mean[RATIO] < 0.0 or (
            have and spread(mean[RATIO] / have, mean[RATIO_SQUARED] / have) > SPREAD
        ):
            self._unlike(windows)
        alike, odd = self._unit.judge(mean)
        for text in odd:
            self._say(text)
        scales = self._unit.scales(mean, alike, windows)
        if scales is not None:
            self._repeated.changes()
        return scales

    def resolve_on_device(self, mean: Tensor, windows: bool = False) -> Scales | None:
        """Return the same factors, without a wait for the numbers.

        Tensors are of one element.
        """
        self._each.let_go()
        return None if self._have_met else self._unit.scales_on_device(mean, windows)

    def _unlike(self, windows: bool) -> None:
        """Warn of terms that count different things, which was unknown before."""
        text = messages.UNLIKE if windows or self._each.differs else messages.LATE
        self._each.differs |= not windows
        if self._sources.unlike:
            where = messages.IN_WINDOW if windows else messages.IN_NO_GRAPH
            return self._say(messages.ZIPPED.format(self._sources.unlike, where))
        counts = ", ".join(f"{float(number):g}" for number in self._deciding.numbers)
        self._say(text.format(counts or "none"))

    def _say(self, text: str) -> None:
        if text and text[:40] not in self._said:
            self._said.add(text[:40])
            self.note = text
            if self._session.is_main:
                warn_of_gradients(text)
