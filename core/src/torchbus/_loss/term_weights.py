"""Terms of one loss that weigh apart: each is multiplied in the graph, where it is reduced, before the ranks' gradients meet.

They do where batches of several loaders feed one step and their shares differ, which every rank knows by itself, and where terms are means
over unlike counts: tokens and samples, say. The ranks tell each other these counts ahead of the gradients, in the first backwards and for good
once they have differed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torchbus._batches.share import Share
from torchbus._batches.taken import Taken
from torchbus._loss.graph import Number, Term, same
from torchbus._loss.term_values import value_of, weighed

if TYPE_CHECKING:
    from torchbus._session.context import Context

LOOKS = 10
TERMS_AT_MOST = 16
SPREAD = 1e-5  # relative, of squares
HAVE, TERMS, TERMS_SQUARED, RATIO, RATIO_SQUARED, HEAD = range(6)
NUMBERS = HEAD + 2 * TERMS_AT_MOST


class Apart(NamedTuple):
    """The terms of a loss. ``counts``: what each is a mean of on this rank. ``rows``: of the batch behind each. ``weights``: what each weighs
    by the samples of that batch alone: in a step of several loaders (``zipped``) they differ."""

    loss: Tensor
    terms: list[Term]
    counts: list[Number]
    rows: list[int]
    weights: list[float]
    zipped: bool

    def ratio(self) -> float:
        """A digest of what the terms count for each sample, relative to each other: alike on all ranks where the weights are those of samples.
        Of several loaders' batches, as it is."""
        each = [float(count) / max(rows, 1) for count, rows in zip(self.counts, self.rows, strict=True)]
        whole = 1.0 if self.zipped else sum(each)
        return sum((place + 2) * one for place, one in enumerate(each)) / whole if whole else 0.0


class TermWeights:
    """Of the losses of a session. ``apart``: the ranks have found, alike, that terms count unlike things. ``mean``: over ranks, of a tensor of
    ``NUMBERS`` in float64 on the session's device."""

    def __init__(self, session: Context, mean: Callable[[Tensor], Tensor]) -> None:
        self._session = session
        self._mean = mean
        self.apart = False
        self._looks = 0
        self._hooks: list[Any] = []

    @property
    def meets(self) -> bool:
        """Whether the ranks tell each other their counts in the next backward."""
        return self.apart or self._looks < LOOKS

    def meet(self, found: Apart | None) -> list[Number] | None:
        """What each term weighs; NaN for a mean over nothing. None: one weight is enough, or the ranks' losses have not the same terms. All
        ranks call it: one collective."""
        self._looks += 1
        told = torch.tensor(_told(found) if not self._on_device(found) else [0.0] * NUMBERS, dtype=torch.float64)
        told = told.to(self._session.device)
        if found is not None and self._on_device(found):
            _tell_there(told, found)
        mean = self._mean(told)
        if self._looks <= LOOKS or told.device.type == "cpu":
            numbers = mean.tolist()
            if not _is_one(numbers, self._session.world_size):
                return None
            self.apart |= _differs(numbers)
        return self._weights(found, mean) if self.apart and found is not None else None

    def _on_device(self, found: Apart | None) -> bool:
        return found is not None and self._looks > LOOKS and any(isinstance(count, Tensor) for count in found.counts)

    def _weights(self, found: Apart, mean: Tensor) -> list[Number]:
        size = len(found.terms)
        counts, squares = mean[HEAD : HEAD + size], mean[HEAD + TERMS_AT_MOST : HEAD + TERMS_AT_MOST + size]
        if mean.device.type != "cpu":
            own = torch.stack([torch.as_tensor(count, dtype=mean.dtype, device=mean.device) for count in _counts(found)])
            return list(torch.where(counts == 0.0, 0.0, own / torch.where(counts == 0.0, 1.0, counts)))
        both = zip(found.terms, _counts(found), counts.tolist(), squares.tolist(), strict=True)
        return [float(own) / mean * self._whole(term, mean, square) if mean else math.nan for term, own, mean, square in both]

    def _whole(self, term: Term, mean: float, square: float) -> float:
        """As many as there are parts for a sum that all ranks divide by the number of samples of all; else 1."""
        share, parts = self._session.share, self._session.world.data.parts
        alike = square - mean * mean <= SPREAD * square
        return float(parts) if term.divisors and alike and share.count >= 2 * parts and same(mean, share.count) else 1.0

    def multiply(self, found: Apart, weights: Sequence[Number]) -> Number | None:
        """Put the weights into the graph, for the backward that comes; returns the weighted loss, if that can be computed. A weight of 0.0,
        or NaN, ends the way: what is behind it gets no gradient, not even a NaN's."""
        value = weighed(found.loss, found.terms, weights)
        self._hooks = [
            term.node.register_prehook(_times(weight)) for term, weight in zip(found.terms, weights, strict=True) if not _is_one_number(weight)
        ]
        return value

    def let_go(self) -> None:
        """The backward is over, or another one begins: the graph may be used again."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


def of_one_batch(loss: Tensor, terms: list[Term], rows: int, share: Share) -> Apart:
    """Terms that all read the same batch."""
    counts = [rows if term.number is None else term.number for term in terms]
    return Apart(loss, terms, counts, [rows] * len(terms), [share.weight] * len(terms), False)


def of_batches(loss: Tensor, terms: list[Term], batches: Sequence[Taken], shares: Sequence[Share]) -> Apart:
    """Terms that read batches of several loaders."""
    counts = [one.rows if term.number is None else term.number for term, one in zip(terms, batches, strict=True)]
    return Apart(loss, terms, counts, [one.rows for one in batches], [one.weight for one in shares], True)


def unique(terms: Sequence[Term]) -> list[Term]:
    """A term that is added up twice has one place in the graph."""
    return list({id(term.node) if term.node is not None else id(term): term for term in terms}.values())


def _told(found: Apart | None) -> list[float]:
    told = [0.0] * NUMBERS
    size = len(found.terms) if found is not None and len(found.terms) <= TERMS_AT_MOST else 0
    told[TERMS], told[TERMS_SQUARED] = float(size), float(size * size)
    if found is not None and size:
        counts = [float(count) for count in _counts(found)]
        told[HEAD : HEAD + size] = counts
        told[HEAD + TERMS_AT_MOST : HEAD + TERMS_AT_MOST + size] = [count * count for count in counts]
        ratio = found.ratio() if all(found.weights) else 0.0
        told[HAVE], told[RATIO], told[RATIO_SQUARED] = float(ratio > 0.0), ratio, ratio * ratio
    return told


def _tell_there(told: Tensor, found: Apart) -> None:
    """Counts on a GPU, for which nobody waits."""
    for place, count in enumerate(_counts(found)):
        told[HEAD + place] = count


def _counts(found: Apart) -> list[Number]:
    """Those of a batch that is there only for want of samples are none."""
    both = zip(found.terms, found.counts, found.weights, strict=True)
    return [_unless_clamped(term, count) if weight else 0.0 for term, count, weight in both]


def _unless_clamped(term: Term, count: Number) -> Number:
    """``sum / mask.sum().clamp(min=1)`` where nothing is left by the mask: a zero over one, which counts nothing."""
    if isinstance(count, Tensor) or not term.divisors or count != 1.0:
        return count
    value = value_of(term.node)
    return count if value is None or value != 0 else 0.0


def _is_one(mean: Sequence[float], world_size: int) -> bool:
    """Whether all ranks' losses have the same number of terms, several."""
    return mean[TERMS] > 1.0 and mean[TERMS_SQUARED] - mean[TERMS] ** 2 < 0.25 / world_size**2


def _differs(mean: Sequence[float]) -> bool:
    have = mean[HAVE]
    ratio, squared = (mean[RATIO] / have, mean[RATIO_SQUARED] / have) if have else (0.0, 0.0)
    return squared - ratio * ratio > SPREAD * SPREAD * squared


def _is_one_number(weight: Number) -> bool:
    return not isinstance(weight, Tensor) and weight == 1.0


def _times(weight: Number) -> Callable[[tuple[Tensor | None, ...]], tuple[Tensor | None, ...]]:
    ends = not isinstance(weight, Tensor) and not weight > 0.0

    def hook(gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        return tuple([None if gradient is None or ends else gradient * weight for gradient in gradients])

    return hook
