"""The plugin: its options, and the listener that rank 0 has."""

from __future__ import annotations

import contextlib

from torchbus.plugin import Context, UsageError, expect, hookimpl

from torchbus_progress.listener import Listener
from torchbus_progress.outputs import Output, choose


class Progress:
    """A progress bar on rank 0: the pass, its batches, speed, time left, loss and metrics.

    It shows the metrics of ``s.log(..., prog_bar=True)``. In a terminal it is a line at the bottom,
    in a notebook an output of its own. Elsewhere it is a line on stderr now and then.

    Args:
        progress: False shows nothing.
        every_s: seconds between two lines, if there is no terminal.

    An error in the bar ends the bar with one warning, and never the training.
    """

    owns = ("progress bar",)

    def __init__(self, progress: bool = True, *, every_s: float = 30.0) -> None:
        expect("progress", progress, bool, "True or False")
        expect("every_s", every_s, (int, float), "a number of seconds")
        if not every_s > 0:
            raise UsageError(f"every_s={every_s}: it must be positive")
        # it brings the metrics of `s.log(..., prog_bar=True)`
        self.companions = ("log",) if progress else ()
        self._active = progress
        self._every_s = float(every_s)
        self._place = ""

    @hookimpl
    def session_start(self, session: Context) -> None:
        if self._active and session.is_main:
            output = choose(self._every_s, shared=session.options["print_all_ranks"])
            session.on_close.callback(_close, output)
            session.bus.register(Listener(output, session.steps.follow()), "progress.listener")
            self._place = output.place

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]] | None:
        return {"progress": [self._place]} if self._place else None


def _close(output: Output) -> None:
    with contextlib.suppress(OSError):
        output.close()
