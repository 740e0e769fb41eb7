"""Sums divided by 1: a count of one, or a count of zero behind ``max(1, positives)``.

Behind a clamp the sum counts in full, but adds nothing to the divisor of one process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import Node

from torchbus_strategy import compat
from torchbus_strategy.graph import nodes_below
from torchbus_strategy.loss.term_weights import may_hide_none
from torchbus_strategy.loss.terms import Coefficient, Count, Number, Term, WeightedTerms

NODES_AT_MOST = 64
DECIDING = -1
"""The place of the term that decides a loss's weight."""
OF_BINARY = ("BinaryCrossEntropyWithLogitsBackward0", "BinaryCrossEntropyBackward0")
OF_CLASSES = ("NllLossBackward0", "NllLoss2DBackward0")


class Clamps:
    """Looks for divisors of one that stand for a count of zero, in each loss of a session.

    A divisor of one may also be the number of samples, unless a divisor in the same place has
    differed from their number before. Or it is the number of rows that were summed, if earlier
    divisors in the same place always were.
    """

    def __init__(self) -> None:
        self._sizes: set[tuple[int, str]] = set()
        self._no_sizes: set[tuple[int, str]] = set()

    def mark(self, count: Count, terms: Sequence[Term], loss: Tensor, rows: int) -> None:
        """Note in ``count`` whether its divisor of one stands, or may stand, for a zero."""
        assert count.term is not None
        if self._is_size(count.term, rows, DECIDING):
            return
        over_one = count.term.is_over_one
        if isinstance(over_one, Tensor):
            count.may_be_clamped = over_one & (loss.detach() != 0)
        elif over_one and not count.is_zero:
            things = _things(terms, rows)
            count.may_be_clamped = float(things is None)
            if things == 0:
                count.is_clamped, count.counted, count.norm = True, True, 0.0

    def may_hide_none(self, found: WeightedTerms) -> bool:
        """Whether a term's divisor of one may stand for a zero that its graph does not show."""
        both = zip(found.terms, found.rows, found.weights, strict=True)
        hiding = [
            not self._is_size(term, rows, place)
            and may_hide_none(term)
            and not _things([term], rows)
            for place, (term, rows, weight) in enumerate(both)
            if weight
        ]
        return not found.zipped and any(hiding)

    def _is_size(self, term: Term, rows: int, place: int) -> bool:
        counts = [one for one in term.divisors if not isinstance(one, Tensor | Coefficient)]
        length = term.sizes[0] if term.sizes else 0
        by_rows, by_length = (place, "rows"), (place, "length")
        for kind, size in ((by_rows, rows), (by_length, length)):
            if counts and size and size not in counts:
                self._no_sizes.add(kind)
            elif counts and size > 1:
                self._sizes.add(kind)
        if 0 in term.sizes:
            return False
        known = self._sizes - self._no_sizes
        return (rows == 1 and by_rows not in self._no_sizes) or (length == 1 and by_length in known)


def _things(terms: Sequence[Term], rows: int) -> int | None:
    """Return how many things a divisor of one counts: 0, 1, or None if the graph does not show it.

    The graph shows it by what was selected before the sum, by positive targets, or by a mask.
    """
    over_one = [term for term in terms if term.is_over_one is True]
    selected = {term.sizes[0] for term in over_one if term.sizes and term.sizes[0] != rows}
    found = selected & {0, 1} or {count for term in over_one for count in _marked(term.node)}
    return next((count for count in (1, 0) if count in found), None)


def _marked(root: Node | None) -> Iterator[int]:
    """Yield the number of marked elements of each tensor of 0 and 1 below a term."""
    for node in nodes_below([root], NODES_AT_MOST):
        marks = _marks(node)
        if marks is not None and marks.is_cpu and not ((marks != 0) & (marks != 1)).any():
            yield int(torch.count_nonzero(marks))


def _marks(node: Node) -> Tensor | None:
    name = type(node).__name__
    if name in (*OF_BINARY, *OF_CLASSES):
        targets: Tensor = compat.target(node).detach()
        return targets if name in OF_BINARY else targets != compat.signed(compat.ignore_index(node))
    sides = [getattr(node, side, None) for side in compat.FACTORS] if name == "MulBackward0" else []
    return next(
        (
            one.detach()
            for one in sides
            if isinstance(one, Tensor) and one.dim() and not one.requires_grad
        ),
        None,
    )


def unless_clamped(term: Term, loss: Tensor) -> Number:
    """Return the term's count, or 0 if a clamp has made it 1.

    In ``sum / mask.sum().clamp(min=1)`` the mask may be all zero. Then the loss is zero divided by
    one, and counts nothing.
    """
    number, over_one = term.number, term.is_over_one
    assert number is not None
    if isinstance(over_one, Tensor):
        return torch.where(over_one & (loss.detach() == 0), 0.0, number)
    return 0.0 if over_one and not loss.item() else number
