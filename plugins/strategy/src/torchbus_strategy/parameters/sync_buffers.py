"""What all ranks have in a buffer that the forward fills from its batch."""

from __future__ import annotations

import torch
from torchbus.plugin import Context, warn

from torchbus_strategy.parameters.rank0_values import Buffers

LOOKS = 3
DIFFER = (
    "the forward fills {} from its batch, so each rank's is another one, and after each backward"
    " all ranks get {}: the samples of the other ranks do not enter as in one process. {}"
)
RANK0 = (
    "rank 0's",
    "sync_buffers='mean' gives all ranks the mean, which is exact for running means of equal"
    " shares. For a counter, a queue or a memory bank, gather what is written: s.all_gather(...)",
)
MEAN = (
    "the mean, or rank 0's of integers",
    "For a counter, a queue or a memory bank, gather what is written: s.all_gather(...)",
)


class SyncBuffers:
    """``how``: "rank0" or "mean". In the first backwards it says once which buffers differ."""

    def __init__(self, session: Context, how: str) -> None:
        self._session = session
        self._how = how
        self._looks = 0 if session.world.divides_anew else LOOKS

    def synchronise(self, buffers: Buffers, alike: bool) -> None:
        """The gradients are averaged. All ranks call it. ``alike``: buffers have equal shapes."""
        looks = bool(self._looks and alike and buffers.named())
        before = {name: one.clone() for name, one in buffers.named().items()} if looks else {}
        if self._how == "mean" and alike:
            buffers.average()
        averaged = {name: one.clone() for name, one in buffers.named().items()} if looks else {}
        buffers.copy_from_rank0(alike)
        if looks:
            self._looks -= 1
            integers_only = self._how == "mean"
            self._say(
                [
                    name
                    for name, now in buffers.named().items()
                    if not _equal(averaged[name] if integers_only else before[name], now)
                ]
            )

    def _say(self, mine: list[str]) -> None:
        reported = self._session.all_gather_object(mine)
        names = sorted({name for theirs in reported for name in theirs})
        if names:
            self._looks = 0
            if self._session.is_main:
                whose, remedy = MEAN if self._how == "mean" else RANK0
                warn(DIFFER.format(", ".join(names[:3]), whose, remedy))


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.nan_to_num(), other.nan_to_num())
