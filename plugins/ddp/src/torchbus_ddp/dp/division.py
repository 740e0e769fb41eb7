"""How the ranks of ``dp`` and ``ddp2`` share the work: those of a team compute one loss together.

Gradients are the mean over ranks of those that ``exchange`` makes of each rank's rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchbus.plugin import Context, RanksDiverged, strategies

from torchbus_ddp.dp.team import Team


def divide(session: Context, team: Team) -> strategies.Division:
    """The division among the teams, of which each has a part of the data.

    Outside a divided forward the ranks of a team draw the same random numbers. Other teams have
    other samples, and so draw others. Each team counts what its samples are worth, and its ranks
    share that.
    """
    data = session.world.data
    has_parts = data.parts > 1
    return strategies.Division(
        strategies.watch_replicas(session) if has_parts else SameLoss(),
        stream=data.part if has_parts else None,
        weight=session.world_size / (data.parts * team.size),
        has_parts=has_parts,
    )


class SameLoss:
    """Checks that all ranks of the only team have computed the same loss."""

    input_sum = 0.0

    def look(self, mean: Sequence[float], sent: Sequence[float]) -> None:
        """Raise RanksDiverged if they have not."""
        own, shared = sent[strategies.header.RAW_LOSS], mean[strategies.header.RAW_LOSS]
        if abs(shared - own) > 1e-3 * abs(own) + 1e-30:
            raise RanksDiverged(
                f"strategy='dp': the ranks had different losses (their mean is {shared:g}, this"
                f" one's {own:g}), but each must see the whole batch. Something differs between"
                " them: a generator that is not seeded, the rank, a file, the time"
            )
