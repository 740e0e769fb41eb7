"""Wrappers of loaders that fetch ahead. The batches that the loop has used count, not theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchbus.plugin import Context, UsageError

if TYPE_CHECKING:
    from torchbus_checkpoint.loop.loaders.passes import OpenPass

GIVEN_AGAIN = "kept, and given again (by a list, or itertools.cycle)"


def waiting(session: Context, one: OpenPass) -> int:
    """Return the number of batches that a wrapper has fetched, and the loop has not used."""
    return 0 if one.origin is None else session.batches.waiting(one.origin)


def used(session: Context, one: OpenPass) -> int:
    """Return the number of batches of a pass that the loop has used."""
    iterator, length = one.alive, 0 if one.origin is None else one.origin.length or 0
    return (length if iterator is None else iterator.taken) - waiting(session, one)


def refuse_hidden_batches(session: Context) -> None:
    """Raise UsageError if the batches come from something that a replay can't bring back."""
    for one in session.batches.feeding:
        if one.origin.threaded or one.origin.kept:
            fate = "read by another thread" if one.origin.threaded else GIVEN_AGAIN
            raise UsageError(
                "a checkpoint can't hold where the loop is in its data: the batches of"
                f" {one.origin.name} are {fate}."
                " Iterate over the loader itself in each epoch (DataLoader(num_workers=...) reads"
                " ahead as well)"
            )
