"""How the ranks share the work: those of a tensor group compute one loss together."""

from __future__ import annotations

from torchbus.plugin import Context

from torchbus_strategy import options
from torchbus_strategy.checks import first_steps, replicas

WORDS = "the ranks of a tensor group", "the same batch"


def divide(session: Context) -> options.Division:
    """The division among tensor groups, of which each has a part of the data.

    The ranks of a group draw the same random numbers. A single group draws those of one process.
    """
    data = session.world.data
    has_parts = data.parts > 1
    return options.Division(
        replicas.watch_replicas(session) if has_parts else first_steps.SameLoss("tp", *WORDS),
        stream=data.part if has_parts else None,
        has_parts=has_parts,
    )
