"""Where progress is shown: a terminal, a notebook, or lines."""

from __future__ import annotations

import sys
from typing import Protocol

from torchbus_progress.outputs.lines import Lines
from torchbus_progress.outputs.notebook import Notebook, in_notebook
from torchbus_progress.outputs.terminal import Terminal
from torchbus_progress.snapshot import Snapshot


class Output(Protocol):
    """``pause_s`` is how long it wants to rest between two drawings; ``place`` says in words where it shows them."""

    pause_s: float
    place: str

    def draw(self, snapshot: Snapshot) -> None:
        """Show this moment."""

    def leave(self, snapshot: Snapshot) -> None:
        """A training pass has ended: leave a line of it, if it was worth one."""

    def end(self, snapshot: Snapshot) -> None:
        """The session ends: leave a line."""

    def close(self) -> None:
        """Put everything back."""


def choose(every_s: float, shared: bool) -> Output:
    """``shared``: other ranks write to the same terminal, line by line."""
    if in_notebook():
        return Notebook()
    return Terminal(sys.stderr) if sys.stderr.isatty() and not shared else Lines(sys.stderr, every_s)
