"""Terms of one loss that may weigh differently."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from torchbus._loss.graph.term import Number, Term


class Apart(NamedTuple):
    """The terms of a loss.

    ``counts``: what each is a mean of on this rank. ``rows``: the rows of the batch behind each.
    ``weights``: how much each weighs by the samples of that batch; in a step of several loaders
    (``zipped``) they differ.
    """

    loss: Tensor
    terms: list[Term]
    counts: list[Number]
    rows: list[int]
    weights: list[float]
    zipped: bool

    def ratio(self) -> float:
        """Return a digest of what the terms count for each sample, relative to each other.

        It is the same on all ranks if the weights are those of samples. For batches of several
        loaders, it is taken as it is.
        """
        each = [
            float(count) / max(rows, 1) for count, rows in zip(self.counts, self.rows, strict=True)
        ]
        whole = 1.0 if self.zipped else sum(each)
        return sum((place + 2) * one for place, one in enumerate(each)) / whole if whole else 0.0
