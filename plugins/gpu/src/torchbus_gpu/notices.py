"""Warnings from the monitor's thread: each once, and never an exception."""

from __future__ import annotations

import contextlib
import sys
import warnings

from torchbus.plugin import redacted

from torchbus_gpu.users_code import Line

MONITOR = Line("torchbus-gpu", 1)


class Notices:
    """``told`` are the texts so far, in order."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def tell(self, text: str, line: Line | None = None) -> None:
        """Warn once, as if the line of the user's loop had done it. Where warnings are errors it is written to stderr instead:
        an exception in this thread would reach nobody."""
        text = redacted(text)
        if text in self.told:
            return
        self.told.append(text)
        where = line or MONITOR
        try:
            warnings.warn_explicit(text, UserWarning, where.file, where.number)
        except UserWarning:
            with contextlib.suppress(OSError):
                print(f"{where}: {text}", file=sys.stderr)
