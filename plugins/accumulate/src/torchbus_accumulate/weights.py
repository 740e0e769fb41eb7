"""What each batch counts in its window."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torchbus import Session
from torchbus.seams.backward import BackwardCall
from torchbus.taken import Taken

from torchbus_accumulate.place import expected_samples
from torchbus_accumulate.position import Position
from torchbus_accumulate.sums import WindowSum


class Weights:
    """Each backward is weighted by its samples over those expected in the window; where that was wrong, the last
    backward of the window finds the sum rescaled, so that the loop never sees anything but the true gradient.

    ``samples`` and ``factor`` are those of the last backward; ``counted``: its samples are tokens that the loop counted;
    ``batch_samples``: those of the loader's batch that feeds this backward.
    """

    def __init__(self, session: Session, position: Position) -> None:
        self._session = session
        self._position = position
        self.batch_samples = 1.0
        self.samples = 1.0
        self.expected = 1.0
        self.factor = 1.0
        self.counted = False

    def weigh(
        self, call: BackwardCall, tokens: float | None, taken: Taken | None, sums: Sequence[WindowSum], first: bool, last: bool
    ) -> float | None:
        """Set the weight of this backward, on the ``first`` batch of a window or the ``last``; returns the samples of the
        window, if it is the last."""
        self.counted = tokens is not None
        if tokens is not None:
            self.samples = self._count(call, tokens)
        else:
            self.samples = self.batch_samples if taken is not None else float(self._session.share.count or 1)
        if first:
            self.expected = self._expect(taken)
        total = self._total(taken, sums) if last else None
        if total is not None and tokens is not None:
            total = self._over_ranks(call, total)
        else:
            self.factor = self.samples / (total or self.expected)
        call.factor = call.factor * self.factor
        return total

    def _expect(self, taken: Taken | None) -> float:
        samples = self.samples or 1.0
        return samples * self._position.size if taken is None else expected_samples(taken, samples, self._position.size)

    def _count(self, call: BackwardCall, tokens: float) -> float:
        call.weight = float(tokens > 0.0 and self._session.share.weight > 0.0)
        return tokens * call.weight

    def _total(self, taken: Taken | None, sums: Sequence[WindowSum]) -> float:
        """The samples of the window that ends, as the gradients say which this backward adds to."""
        committed = [one.samples for one in sums if one.takes_part]
        if committed:
            return self.samples + max(committed)
        return self.samples if taken is not None and self._position.index == 1 else self.expected

    def _over_ranks(self, call: BackwardCall, total: float) -> float:
        """Counts that only each rank knows: the only thing that is communicated for them, once per window."""
        ranks = self._session.world_size
        both = torch.tensor([total, self.samples], dtype=torch.float64)
        all_total, all_samples = self._session.reduce(both, "sum").tolist()
        call.weight = self.samples * ranks / all_samples if all_samples else 0.0
        self.factor = all_samples / all_total if all_total else 0.0
        return float(all_total) / ranks
