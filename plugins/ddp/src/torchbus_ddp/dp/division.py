"""How the ranks of ``dp`` and ``ddp2`` share the work: those of a team compute one loss together.

Gradients are the mean over ranks of those that ``exchange`` makes of each rank's rows.
"""

from __future__ import annotations

from torchbus.plugin import Context

from torchbus_ddp.dp.team import Team
from torchbus_strategy import options
from torchbus_strategy.checks import first_steps, replicas


def divide(session: Context, team: Team) -> options.Division:
    """The division among the teams, of which each has a part of the data.

    Outside a divided forward the ranks of a team draw the same random numbers. Other teams have
    other samples, and so draw others. Each team counts what its samples are worth, and its ranks
    share that.
    """
    data = session.world.data
    has_parts = data.parts > 1
    return options.Division(
        replicas.watch_replicas(session) if has_parts else first_steps.SameLoss("dp"),
        stream=data.part if has_parts else None,
        weight=session.world_size / (data.parts * team.size),
        has_parts=has_parts,
    )
