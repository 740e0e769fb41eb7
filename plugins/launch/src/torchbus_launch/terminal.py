"""Writes the job's lines to the terminal; no other module does."""

from __future__ import annotations

import contextlib
import sys
import threading

from torchbus_redaction.redactor import redacted_output


def say(text: str, mark: str = "", within_s: float = 2.0) -> None:
    """Write to the stderr that this process began with, and put ``mark`` before each line.

    Returns after ``within_s`` seconds even if the text is not written yet.
    """

    def write() -> None:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        with contextlib.suppress(Exception):
            lines = redacted_output(text).rstrip().splitlines()
            shown = "\n".join(mark + line for line in lines)
            print(shown, file=sys.__stderr__ or sys.stderr, flush=True)

    thread = threading.Thread(target=write, name="torchbus-say", daemon=True)
    thread.start()
    thread.join(within_s)
