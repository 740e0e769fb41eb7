"""Gradients under ``dp`` and ``ddp2``: those of ``ddp``, for ranks that compute the same loss together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor
from torchbus.plugin import BackwardCall, Context, Count, RanksDiverged

from torchbus_ddp.backward import header
from torchbus_ddp.backward.sync import GradientSync
from torchbus_ddp.dp.team import Team

if TYPE_CHECKING:
    from torchbus_ddp.dp.strategy import DP


class TeamSync(GradientSync):
    """The mean over ranks of gradients that ``exchange`` has made of each rank's rows."""

    def __init__(self, session: Context, strategy: DP, team: Team) -> None:
        super().__init__(session, strategy)
        self._team = team

    def _split_random(self) -> None:
        """Outside a divided forward the ranks of a team draw the same numbers; other teams have other samples, so other numbers."""
        if self._session.world.data.parts > 1:
            self._session.random.split(self._session.world.data.part)

    def _look_at(self, loss: Tensor) -> str:
        """The loss of one team is whole, mean or sum; only the means over teams depend on it."""
        return super()._look_at(loss) if self._session.world.data.parts > 1 else ""

    def _count(self, call: BackwardCall) -> Count:
        """Of each team what its samples are worth, shared by its ranks."""
        count = super()._count(call)
        part = self._session.world_size / (self._session.world.data.parts * self._team.size)
        count.weight, count.norm = count.weight * part, count.norm * part
        return count


class SameLoss:
    """All ranks of one team must have computed the same loss."""

    input_sum = 0.0

    def look(self, mean: Sequence[float], sent: Sequence[float]) -> None:
        """Raises RanksDiverged where they have not."""
        own = sent[header.RAW_LOSS]
        if abs(mean[header.RAW_LOSS] - own) > 1e-3 * abs(own) + 1e-30:
            raise RanksDiverged(
                f"strategy='dp': the ranks had different losses (their mean is {mean[header.RAW_LOSS]:g}, this one's {own:g}), but each must "
                "see the whole batch. Something differs between them: a generator that is not seeded, the rank, a file, the time"
            )
