"""How the ranks share the work: those of a tensor group compute one loss together."""

from __future__ import annotations

from collections.abc import Sequence

from torchbus.plugin import Context, RanksDiverged, strategies


def divide(session: Context) -> strategies.Division:
    """The division among tensor groups, of which each has a part of the data.

    The ranks of a group draw the same random numbers. A single group draws those of one process.
    """
    data = session.world.data
    has_parts = data.parts > 1
    return strategies.Division(
        strategies.watch_replicas(session) if has_parts else SameLoss(),
        stream=data.part if has_parts else None,
        has_parts=has_parts,
    )


class SameLoss:
    """Checks that all ranks of the only group have computed the same loss."""

    input_sum = 0.0

    def look(self, mean: Sequence[float], sent: Sequence[float]) -> None:
        """Raise RanksDiverged if they have not."""
        own, shared = sent[strategies.header.RAW_LOSS], mean[strategies.header.RAW_LOSS]
        if abs(shared - own) > 1e-3 * abs(own) + 1e-30:
            raise RanksDiverged(
                f"strategy='tp': the ranks of a tensor group had different losses (their mean is"
                f" {shared:g}, this one's {own:g}), but each must see the same batch. Something"
                " differs between them: a generator that is not seeded, the rank, a file, the time"
            )
