"""Refuses to go on if nobody can tell which batch feeds a backward, and it matters."""

from __future__ import annotations

from collections.abc import Sequence

from torchbus._batches.taken import Taken
from torchbus.errors import UsageError

UNKNOWN = (
    "{} batches of {} were taken before this backward, and nobody can tell which of them feeds it:"
    " the loop fetches ahead, or leaves batches out, and computes with copies (.float(), .to(...)),"
    " of which the originals are gone. It decides {}. Keep the loader's own tensors until they are"
    " used, or take the wrapper away: DataLoader(num_workers=..., pin_memory=True) fetches ahead as"
    " well{}"
)


def refuse(taken: Sequence[Taken], dependents: Sequence[str]) -> None:
    """Raise UsageError if the batches' shares differ, or if there are ``dependents``, in words."""
    origin = taken[-1].origin
    unlike = origin.ragged or len({one.share.weight for one in taken if one.share is not None}) > 1
    needs = [*(["the weight of the ragged end"] if unlike else []), *dependents]
    if needs:
        last = ", or use drop_last=True" if needs == needs[:unlike] else ""
        raise UsageError(UNKNOWN.format(len(taken), origin.name, " and ".join(needs), last))
