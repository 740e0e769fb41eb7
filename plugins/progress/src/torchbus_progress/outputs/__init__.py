"""Where progress is shown: a terminal, a notebook, or lines."""

from __future__ import annotations

import sys
from typing import Protocol

from torchbus_progress.outputs.lines import Lines
from torchbus_progress.outputs.notebook import Notebook, in_notebook
from torchbus_progress.outputs.terminal import Terminal
from torchbus_progress.snapshot import Snapshot


class Output(Protocol):
    """Shows snapshots. ``pause_s``: the time between two drawings. ``place``: where, in words."""

    pause_s: float
    place: str

    def draw(self, snapshot: Snapshot) -> None:
        """Show a snapshot."""

    def leave(self, snapshot: Snapshot) -> None:
        """A training pass has ended. Leave a line about it, if it took long enough."""

    def end(self, snapshot: Snapshot) -> None:
        """The session ends. Leave a line about it."""

    def close(self) -> None:
        """Restore the terminal."""


def choose(every_s: float, shared: bool) -> Output:
    """Choose the output. ``shared``: other ranks write to the same terminal, line by line."""
    if in_notebook():
        return Notebook()
    return (
        Terminal(sys.stderr) if sys.stderr.isatty() and not shared else Lines(sys.stderr, every_s)
    )
