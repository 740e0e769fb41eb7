"""Wrappers of loaders that fetch ahead of the loop: what the loop has used counts, not what they have taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchbus.plugin import Context, UsageError

if TYPE_CHECKING:
    from torchbus_checkpoint.loop.passes import OpenPass


def waiting(session: Context, one: OpenPass) -> int:
    """Batches of a pass that a wrapper has fetched, and the loop has not used."""
    return 0 if one.origin is None else session.batches.waiting(one.origin)


def used(session: Context, one: OpenPass) -> int:
    """Batches of a pass that the loop is done with."""
    iterator = one.alive
    taken = iterator.taken if iterator is not None else (one.origin.length or 0) if one.origin is not None else 0
    return taken - waiting(session, one)


def refuse_hidden_batches(session: Context) -> None:
    """Raise UsageError where the loop's batches come from something that a replay can't lead back to where it was."""
    for one in session.batches.feeding:
        if one.origin.threaded or one.origin.kept:
            raise UsageError(
                f"a checkpoint can't hold where the loop is in its data: the batches of {one.origin.name} are "
                f"{'read by another thread' if one.origin.threaded else 'kept, and given again (by a list, or itertools.cycle)'}. "
                "Iterate the loader itself, anew for each epoch (DataLoader(num_workers=...) reads ahead as well)"
            )
