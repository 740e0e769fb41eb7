"""Recognises losses that count the same as earlier ones, and need no further look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchbus.plugin import Share

from torchbus_strategy.loss.terms import Count, Number, Term

OFTEN = 12
"""In a row: longer than any look at first backwards lasts."""


class RepeatedLosses:
    """The count of a loss with one term, if the term and the share of the data are the usual ones.

    All that is found out about a loss follows from these and from earlier ones. After some
    repetitions it is the same each time: ``usual``, which is not changed.
    """

    def __init__(self) -> None:
        self._facts: tuple[object, ...]
        self._mean: Sequence[float] = ()
        self.forget()

    def forget(self) -> None:
        """A loss counts otherwise, or is not looked at."""
        self.usual: Count | None = None
        self._facts, self._times, self._is_over_one = (), 0, False

    def count(
        self, terms: Sequence[Term], share: Share, others: tuple[Number, ...]
    ) -> Count | None:
        """Return it, or None for a loss to look at. ``others``: what else it depends on."""
        if len(terms) != 1:
            self.forget()
            return None
        (term,) = terms
        facts = (
            *(share.weight, share.count, others),
            *(term.reduction, term.number, term.divisors, term.sizes, term.over),
        )
        if facts != self._facts:
            self.forget()
            # a divisor of one may come from a clamp, which only its value shows
            self._facts, self._is_over_one = facts, bool(term.is_over_one)
        return self.usual

    def note(self, count: Count) -> None:
        """Remember the count of a loss that was looked at."""
        self._times += 1
        is_plain = count.weighted_terms is None and count.value is None and not count.is_clamped
        if self._times < OFTEN or not is_plain or not self._facts or self._is_over_one:
            return
        self.usual = usual = count.copied()
        usual.term = count.term and replace(count.term, node=None)  # it would keep the graph
        usual.metadata = usual.to_metadata()
        self._mean, self._times = (), 0

    def is_settled(self, mean: Sequence[float]) -> bool:
        """Whether that mean has come often, and each time it has changed nothing."""
        return self._times > OFTEN and self.usual is not None and mean == self._mean

    def changes_nothing(self, mean: Sequence[float]) -> bool:
        """Whether the mean of what the ranks have counted is usual, and changes no gradient."""
        if self.usual is None:
            return False
        if mean != self._mean:
            self._mean, self._times = mean, 0
        self._times += 1
        return self._times > OFTEN

    def changes(self) -> None:
        """That mean has changed the gradients."""
        self._mean = ()
