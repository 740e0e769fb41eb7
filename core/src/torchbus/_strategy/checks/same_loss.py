"""Ranks that compute one loss together must have computed the same."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchbus._strategy.backward.header import RAW_LOSS
from torchbus.errors import RanksDiverged


class SameLoss:
    """The ``Watch`` of ranks that all see the same batch.

    ``ranks`` and ``batch``: what the error calls them.
    """

    input_sum = 0.0

    def __init__(
        self, strategy: str, ranks: str = "the ranks", batch: str = "the whole batch"
    ) -> None:
        self._strategy, self._ranks, self._batch = strategy, ranks, batch

    def look(self, mean: Sequence[float], sent: Sequence[float]) -> None:
        """Raise RanksDiverged if the losses differ by more than rounding."""
        own, shared = sent[RAW_LOSS], mean[RAW_LOSS]
        differs = abs(shared - own) > 1e-3 * abs(own) + 1e-30
        if differs or math.isnan(shared) > math.isnan(own):
            raise RanksDiverged(
                f"strategy={self._strategy!r}: {self._ranks} had different losses (their mean is"
                f" {shared:g}, this one's {own:g}), but each must see {self._batch}. Something"
                " differs between them: a generator that is not seeded, the rank, a file, the time"
            )
