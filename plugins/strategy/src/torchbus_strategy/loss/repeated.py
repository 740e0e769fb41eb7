"""Recognises losses that count what those before have counted, and need no further look."""

from __future__ import annotations

from collections.abc import Sequence

from torchbus.plugin import Share

from torchbus_strategy.loss.terms import Count, Number, Term

OFTEN = 12
"""In a row: longer than any look at first backwards lasts."""


class Usual:
    """Whether a value has come often, without another one in between."""

    __slots__ = ("_times", "_value")

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._value: object = None
        self._times = 0

    def comes_again(self, value: object) -> bool:
        if value != self._value:
            self._value, self._times = value, 0
        self._times += 1
        return self._times > OFTEN


class RepeatedLosses:
    """The count of a loss with one term, if the term and the share of the data are the usual ones.

    All that is found out about a loss follows from these and from earlier ones. After some
    repetitions it is the same each time.
    """

    def __init__(self) -> None:
        self._losses, self._means = Usual(), Usual()
        self._found: tuple[Number, bool, Number, float, bool] | None = None
        self._is_usual = False

    def forget(self) -> None:
        """A loss counts otherwise, or is not looked at."""
        self._is_usual = False
        self._losses.forget()

    def count(self, terms: Sequence[Term], share: Share, others: tuple[float, ...]) -> Count | None:
        """Return it, or None for a loss to look at. ``others``: what else it depends on."""
        if len(terms) != 1:
            self.forget()
            return None
        (term,) = terms
        number, divisors = term.number, term.divisors
        facts = (share.weight, share.count, others, term.reduction, number, divisors)
        self._is_usual = (
            self._losses.comes_again((facts, term.sizes, term.over))
            and self._found is not None
            and not term.is_over_one  # maybe behind a clamp: its value shows it
        )
        if not self._is_usual or self._found is None:
            return None
        weight, counted, total, ratio, has_term = self._found
        count = Count(weight, counted, total, ratio)
        count.term, count.is_usual = term if has_term else None, True
        return count

    def note(self, count: Count) -> None:
        """Remember the count of a loss that was looked at."""
        is_plain = count.weighted_terms is None and count.value is None and not count.is_clamped
        found = count.weight, count.counted, count.total, count.ratio, count.term is not None
        self._found = found if is_plain else None

    def changes_nothing(self, mean: Sequence[float]) -> bool:
        """Whether the mean of what the ranks have counted is usual, and changes no gradient."""
        if not self._is_usual:
            self._means.forget()
        return self._is_usual and self._means.comes_again(mean)

    def changes(self) -> None:
        """That mean has changed the gradients."""
        self._means.forget()
