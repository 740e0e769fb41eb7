"""The events that torchbus-checkpoint adds: the next epoch of ``s.epochs``, and a restore."""

from __future__ import annotations

from torchbus.plugin import hookspec


@hookspec(firstresult=True)
def end_epochs(epoch: int) -> bool | None:
    """``s.epochs`` is about to begin another epoch. True: the loop is over.

    ``epoch``: its number, from 0.

    Since 0.1.
    """


@hookspec
def before_restore() -> None:
    """A checkpoint is about to be put back. Nothing was compared with it yet.

    Complete what it is compared with: optimizers get all their groups. Sent once per restore.

    Since 0.1.
    """
