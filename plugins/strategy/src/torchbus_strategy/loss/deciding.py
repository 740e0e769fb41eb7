"""Finds the term that decides the weight of a loss, and warns if its counts may be wrong."""

from __future__ import annotations

import operator
from dataclasses import replace
from itertools import accumulate

from torch import Tensor
from torchbus.plugin import Context, Share

from torchbus_strategy import compat
from torchbus_strategy.loss.messages import (
    BY_KIND,
    COMPARES,
    MIXED,
    SILENT,
    SUM_BESIDE,
    TIMES_ROWS,
)
from torchbus_strategy.loss.reading import (
    is_elsewhere,
    is_sum,
    relates_samples,
    sums_samples,
    terms_of,
)
from torchbus_strategy.loss.term_weights import (
    of_one_batch,
    of_sums,
    unique,
)
from torchbus_strategy.loss.terms import (
    Coefficient,
    Number,
    Term,
    WeightedTerms,
    same,
)
from torchbus_strategy.loss.walks import adds_parameters, are_apart, decomposes_samples

ALIKE_FOR = 3
"""The number of losses in a row with the number of rows as a factor that is not a coincidence."""
LOOKS, MOST_KINDS = 5, 16
"""The number of first losses whose graph is walked to find comparisons between samples."""
READ_AT_MOST = 3
"""The number of losses that are read although a count is on a GPU and the host must wait."""
ALL_ALIKE = 1.0
"""The ratio of terms that are all divided by one number, however many terms there are."""


class Deciding:
    """Finds the deciding term, and remembers the latest loss.

    ``numbers`` are the counts of that loss's terms, if it had several, and ``ratio`` is a digest of
    these counts relative to the deciding one. The argument ``parts`` is the number of parts of the
    global batch. ``sums`` says whether sums over samples are summed over ranks.
    """

    def __init__(self, parts: int, sums: bool) -> None:
        self._parts, self._sums = parts, sums
        self.numbers: list[Number] = []
        self.ratio = 0.0
        self.hidden: set[str] | None = None
        """Reductions of the terms, if a count is not in the graph; None if all counts are."""
        self.mixed = 0.0
        """The count of one term, if the count of another is not in the graph."""
        self.is_sum = self.is_empty = False
        """Whether the loss is a plain sum over samples; whether it has no terms."""
        self.beside: WeightedTerms | None = None
        """The loss's terms, if it adds sums over samples to means over them, or to a penalty."""
        self.has_sums = False
        """Whether the loss adds such sums to other terms."""
        self.compares = False
        """Whether the loss relates samples to each other."""
        self._looks_left = LOOKS
        self._looks: dict[tuple[str, ...], tuple[int, bool]] = {}
        """For each kind of loss, how many looks are left, and what the latest has found."""
        self._elsewhere = False
        """Whether some loss had its samples in a dimension other than the first."""
        self._by_rows = 0
        self._numbers_of_terms: set[tuple[str, int]] = set()
        """Kinds of losses, each with a number of terms that is not a multiple of the rows."""
        self.by_row = 0
        """The loss's number of terms, if they may be separate terms of each sample."""
        self._kind = ""
        self._kinds_by_row: set[str] = set()

    @property
    def looks(self) -> bool:
        """Whether the graph is searched for the dimension of the samples: see ``Counted``."""
        return self._looks_left > 0 or self._elsewhere

    def find(
        self,
        loss: Tensor,
        terms: list[Term],
        rows: int,
        share: Share,
        may_sync: bool,
        gathers: bool,
    ) -> tuple[Term | None, float, WeightedTerms | None]:
        """Return the deciding term, the digest, and the terms that may weigh differently."""
        self.hidden, self.mixed, self.beside = None, 0.0, None
        self._kind, self.by_row = type(loss.grad_fn).__name__, int(len(terms) == rows == 1)
        self._elsewhere |= any(map(is_elsewhere, terms))
        self.is_sum, self.is_empty = is_sum(terms), not terms
        self._look_between(loss, terms, rows)
        if self.is_sum:
            if self._sums and may_sync and adds_parameters(loss, terms):
                self.beside = of_sums(loss, unique(terms), rows, share, self._parts)
                self.is_sum = self.beside is None
            return None, 0.0, self.beside
        # a penalty looks like a sum over the only sample, which one rank has
        self.has_sums = self._sums and share.count != 1 and any(map(sums_samples, terms))
        if self.has_sums and may_sync:
            self.beside = of_sums(loss, unique(terms), rows, share, self._parts)
        if self.beside is not None:
            return None, 0.0, self.beside
        if len(terms) == 1 and terms[0].number is not None:
            has_penalty = bool(terms[0].divisors) and adds_parameters(loss, terms)
            may_weigh = has_penalty and may_sync and gathers
            weighted = of_one_batch(loss, terms, rows, share) if may_weigh else None
            return terms[0], 0.0, weighted and weighted._replace(has_penalty=True)
        if terms and all(_is_one_of(len(terms), term) for term in terms):
            return replace(terms[0], number=float(len(terms))), 0.0, None
        if self._has_one_for_each_row(terms, rows, may_sync and gathers):
            self.compares = False
            return None, 0.0, None
        if not terms or any(term.number is None for term in terms):
            self.hidden = {term.reduction for term in terms}
            self.mixed = next((number for number in map(_counted, terms) if number), 0.0)
            if not rows or same(self.mixed, rows):
                self.mixed = 0.0
            return None, 0.0, None
        first = next((term for term in terms if not term.sizes or term.divisors), terms[0])
        self.numbers = [term.number for term in terms if term.number is not None]
        may_gather = may_sync and gathers
        weighted = of_one_batch(loss, unique(terms), rows, share) if may_gather else None
        known = [float(number) for number in self.numbers if not isinstance(number, Tensor)]
        if len(known) == len(self.numbers) and len(set(known)) == 1:
            self.ratio = ALL_ALIKE
        elif first.number and len(known) == len(self.numbers):
            weighed = sum((place + 2) * number for place, number in enumerate(known))
            self.ratio = weighed / float(first.number)
        return first, self.ratio, weighted

    def _look_between(self, loss: Tensor, terms: list[Term], rows: int) -> None:
        """Look, in the first losses of each kind, whether samples are compared with each other.

        A term may join the loss after epochs of warm-up.
        """
        self._looks_left = max(self._looks_left - 1, 0)
        kind = (self._kind, *[term.reduction for term in terms])
        left, self.compares = self._looks.get(kind, (LOOKS, False))
        if left and (kind in self._looks or len(self._looks) < MOST_KINDS):
            self.compares = any(map(relates_samples, terms)) or (
                rows > 0 and decomposes_samples(loss)
            )
            self._looks[kind] = left - 1, self.compares

    def warnings(self, term: Term | None, rows: int) -> list[str]:
        """Return the warnings about the latest loss, whose deciding term is ``term``."""
        kinds = [BY_KIND[kind] for kind in sorted(self.hidden or ()) if kind in BY_KIND]
        mixed = [MIXED.format(self.mixed, rows)] if self.mixed else []
        mixed += [SUM_BESIDE] if self.has_sums and self.beside is None else []
        times = [TIMES_ROWS.format(rows)] if self._has_rows_as_factor(term, rows) else []
        between = [COMPARES] if self.compares and not kinds else []
        return [*kinds, *mixed, *times, *between]

    def _has_rows_as_factor(self, term: Term | None, rows: int) -> bool:
        """Whether the loop has multiplied the last losses, which are means, by this rank's rows."""
        found = term is not None and not term.divisors and rows > 1
        by_rows = found and any(_is(number, 1 / rows) for number in (term.over if term else ()))
        self._by_rows = self._by_rows + 1 if by_rows else 0
        return self._by_rows == ALIKE_FOR

    def note_by_row(self) -> None:
        """Note that losses like the latest have terms for each sample, as other ranks show."""
        self._kinds_by_row.add(self._kind)

    def _has_one_for_each_row(self, terms: list[Term], rows: int, gathers: bool) -> bool:
        """Whether the loss is a mean over samples, each with separate terms.

        A term that counts ``rows`` things may be a term of all samples. Then earlier losses decide,
        or the losses of other ranks if ``gathers``.
        """
        if not rows:  # not counted, or the batch only fills in for missing samples
            return False
        if not terms or len(terms) % rows:
            self._numbers_of_terms.add((self._kind, len(terms)))
            return False
        found = (
            rows > 1
            and (self._kind, len(terms)) not in self._numbers_of_terms
            and all(_is_divided_by(rows, term) for term in terms)
            and are_apart(terms, rows)
        )
        self.by_row = len(terms) if found else self.by_row
        if found and not all(_may_cover(rows, term) for term in terms):
            self.note_by_row()
        return found and (self._kind in self._kinds_by_row or not gathers)


def _is_one_of(count: int, term: Term) -> bool:
    """Whether a term is one of ``count`` in a mean, as in ``sum(losses) / len(losses)``."""
    target = getattr(term.node, compat.TARGET, None)
    is_whole = target is None or target.numel() == 1  # else a mask may have left one of many
    is_one = is_whole and term.number is not None and _is(term.number, 1.0)
    return is_one and not term.divisors and _is_divided_by(count, term)


def _is_divided_by(rows: int, term: Term) -> bool:
    """Whether a mean, or a sum that has another divisor, is also divided by ``rows``."""
    counts = [one for one in term.divisors if not isinstance(one, Coefficient)]
    return any(_is(number, rows) for number in (*term.over, *(counts if len(counts) > 1 else ())))


def _may_cover(rows: int, term: Term) -> bool:
    """Whether a term may be one of all samples, not one of a sample that has ``rows`` things."""
    target = getattr(term.node, compat.TARGET, None)
    return not term.divisors and rows in (term.sizes if target is None else target.shape)


def _counted(term: Term) -> float:
    """Return a count of targets, or a divisor, if the host has it, and 0.0 otherwise."""
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
        """Whether the terms' counts for each sample differ from those of the previous loss."""
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


def host_knows(term: Term) -> bool:
    """Whether the host has a term's numbers. It does not wait for numbers on a GPU."""
    return not any(isinstance(one, Tensor) for one in (term.number, *term.divisors, *term.over))


def _is_a_constant(term: Term, number: float, rows: float) -> bool:
    """Whether a sum is divided by something else than the number of things that were summed."""
    if not term.divisors or not term.sizes:
        return False
    return not any(same(number, count) for count in (rows, *accumulate(term.sizes, operator.mul)))
