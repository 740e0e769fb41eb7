"""What each batch counts in its window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torchbus import Session
from torchbus.seams.backward import BackwardCall
from torchbus.seams.loader import LoaderIterator

from torchbus_accumulate.place import expected_samples, rows
from torchbus_accumulate.position import Position
from torchbus_accumulate.sums import WindowSum


class Weights:
    """Each backward is weighted by its samples over those expected in the window; where that was wrong, the last
    backward of the window finds the sum rescaled, so that the loop never sees anything but the true gradient.

    ``samples`` and ``factor`` are those of the last backward; ``counted``: its samples are tokens that the loop counted.
    """

    def __init__(self, session: Session, position: Position) -> None:
        self._session = session
        self._position = position
        self._batch_samples = 1.0
        self.samples = 1.0
        self.expected = 1.0
        self.factor = 1.0
        self.counted = False

    def took(self, batch: Any) -> None:
        """The loop was handed a batch."""
        self._batch_samples = float(self._session.share.count or rows(batch))

    def weigh(
        self, call: BackwardCall, tokens: float | None, iterator: LoaderIterator | None, sums: Sequence[WindowSum], last: bool
    ) -> float | None:
        """Set the weight of this backward; returns the samples of the window, if it is the ``last`` one of it."""
        self.counted = tokens is not None
        if tokens is not None:
            self.samples = self._count(call, tokens)
        else:
            self.samples = self._batch_samples if iterator is not None else float(self._session.share.count or 1)
        if iterator is not None:
            if self._position.index == 1:
                self.expected = expected_samples(iterator, self.samples or 1.0, self._position.size)
        elif not max([one.calls for one in sums], default=0):
            self.expected = (self.samples or 1.0) * self._position.size
        total = self._total(iterator, sums) if last else None
        if total is not None and tokens is not None:
            total = self._over_ranks(call, total)
        else:
            self.factor = self.samples / (total or self.expected)
        call.factor = call.factor * self.factor
        return total

    def _count(self, call: BackwardCall, tokens: float) -> float:
        call.weight = float(tokens > 0.0 and self._session.share.weight > 0.0)
        return tokens * call.weight

    def _total(self, iterator: LoaderIterator | None, sums: Sequence[WindowSum]) -> float:
        """The samples of the window that ends, as the gradients say which this backward adds to."""
        committed = [one.samples for one in sums if one.takes_part]
        if committed:
            return self.samples + max(committed)
        return self.samples if iterator is not None and self._position.index == 1 else self.expected

    def _over_ranks(self, call: BackwardCall, total: float) -> float:
        """Counts that only each rank knows: the only thing that is communicated for them, once per window."""
        ranks = self._session.world_size
        both = torch.tensor([total, self.samples], dtype=torch.float64)
        all_total, all_samples = self._session.reduce(both, "sum").tolist()
        call.weight = self.samples * ranks / all_samples if all_samples else 0.0
        self.factor = all_samples / all_total if all_total else 0.0
        return float(all_total) / ranks
