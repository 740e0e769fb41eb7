"""Warnings from the monitor's thread: each comes once, and never as an exception."""

from __future__ import annotations

import contextlib
import sys
import warnings

from torchbus_gpu.users_code import Line
from torchbus_redaction.redactor import redacted

MONITOR = Line("torchbus-gpu", 1)


class Notices:
    """Issues each warning once. ``warned``: the texts so far, in order."""

    def __init__(self) -> None:
        self.warned: list[str] = []

    def warn(self, text: str, line: Line | None = None) -> None:
        """Warn once, as if the line of the user's loop had done it.

        If warnings are errors, write it to stderr: nothing would catch an exception in this thread.
        """
        text = redacted(text)
        if text in self.warned:
            return
        self.warned.append(text)
        where = line or MONITOR
        try:
            warnings.warn_explicit(text, UserWarning, where.file, where.number)
        except UserWarning:
            with contextlib.suppress(OSError):
                print(f"{where}: {text}", file=sys.stderr)
