"""Starts the process of a trial, waits for it, and says how it goes."""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from torchbus_advise.trial.child import work
from torchbus_advise.trial.outcome import Outcome, Request, read_outcome

START: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
"""This process has imported torch, and computed nothing: a fork of it begins at once."""
TOLD_EVERY_S = 30.0
LAST_LINES = 20


def run(request: Request, timeout_s: float, say: Callable[[str], None]) -> Outcome:
    """Nothing of the script's own output is shown. A process that dies, or that takes longer than
    ``timeout_s``, is an outcome too."""
    with tempfile.TemporaryDirectory(prefix="torchbus-advise-") as name:
        answered, output = Path(name) / "outcome.json", Path(name) / "output"
        process = START.Process(target=work, args=(request, answered, output))
        process.start()
        try:
            _wait(process, timeout_s, say)
        finally:
            process.kill() if process.is_alive() else None
            late = process.exitcode is None
            process.join()
        if answered.exists():
            return read_outcome(answered)
        trace = _tail(output.read_text(encoding="utf-8", errors="replace"))
        return Outcome(error=_died(None if late else process.exitcode, timeout_s), trace=trace)


def _wait(process: BaseProcess, timeout_s: float, say: Callable[[str], None]) -> None:
    begun_s = time.monotonic()
    while process.is_alive() and (gone_s := time.monotonic() - begun_s) < timeout_s:
        process.join(min(TOLD_EVERY_S, timeout_s - gone_s))
        if process.is_alive():
            gone_s = time.monotonic() - begun_s
            say(f"still running after {gone_s:.0f} s (limit {timeout_s:.0f} s)")


def _died(status: int | None, timeout_s: float) -> str:
    if status is None:
        return f"it did not finish its first steps within {timeout_s:.0f} s"
    if status == -9:
        return "the system killed it (signal 9), as it does when memory runs out"
    return f"the process ended with status {status} before its first step"


def _tail(text: str) -> str:
    return "\n".join(text.splitlines()[-LAST_LINES:])
