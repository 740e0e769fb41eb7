"""The event that torchbus-checkpoint adds: whether ``s.epochs`` is over."""

from __future__ import annotations

from torchbus.plugin import hookspec


@hookspec(firstresult=True)
def end_epochs() -> bool | None:
    """``s.epochs`` is about to begin another epoch. True: the loop is over.

    Since 0.1.
    """
