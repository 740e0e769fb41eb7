"""Recognises losses that count the same as earlier ones, and need no further look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchbus.plugin import Share

from torchbus_strategy.loss.terms import Count, Number, Term

OFTEN = 12
"""Repetitions in a row after which a count is usual. Looks at first backwards end earlier."""


class RepeatedLosses:
    """The count of a loss with one term, if the term and the share of the data are the usual ones.

    All that is found out about a loss follows from these two and from earlier losses. After some
    repetitions the count is the same each time. It is then ``usual``, and must not be changed.
    """

    def __init__(self) -> None:
        self._facts: tuple[object, ...]
        self._mean: Sequence[float] = ()
        self.forget()

    def forget(self) -> None:
        """Forget the usual count, because a loss counts differently or is not looked at."""
        self.usual: Count | None = None
        self._facts, self._times, self._is_over_one = (), 0, False

    def count(
        self, terms: Sequence[Term], share: Share, others: tuple[Number, ...]
    ) -> Count | None:
        """Return the usual count, or None if the loss must be looked at.

        ``others`` are the other numbers on which the count depends.
        """
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
        usual.term = count.term and replace(count.term, node=None)  # a node keeps the graph alive
        usual.metadata = usual.to_metadata()
        self._mean, self._times = (), 0

    def is_settled(self, mean: Sequence[float]) -> bool:
        """Whether ``mean`` has occurred often, and has changed nothing each time."""
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
        """Note that the latest mean has changed the gradients."""
        self._mean = ()
