"""A line at the bottom of a terminal. It leaves all other output as it is."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable
from typing import Any, TextIO

from rich.console import Console

from torchbus_progress import words
from torchbus_progress.outputs.layout import line
from torchbus_progress.snapshot import Snapshot

CLEAR_BELOW, UP = "\x1b[J", "\x1b[1A\r"
LONG_PASS_S = 2.0


class Terminal:
    """Draws the bar one line below the cursor.

    So a line of other code (an older logging handler, a C library) comes out whole. Until
    ``close``, the bar disappears before ``sys.stdout`` or ``sys.stderr`` writes. It comes back
    after a line feed. So a bar of the loop's own has the terminal for itself, as tqdm ends its
    lines with a carriage return.
    """

    pause_s = 0.1
    place = "a line at the bottom of the terminal, by rank 0"

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._console = Console(file=stream)
        self._unicode = (stream.encoding or "").lower().startswith("utf")
        self._render(Snapshot("", 0, 1))  # rich is slow the first time
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._visible = False
        self._at_line_start = True
        self._heard = [
            _Heard(self, name) for name in ("stdout", "stderr") if getattr(sys, name).isatty()
        ]

    def draw(self, snapshot: Snapshot) -> None:
        with self._lock:
            if self._at_line_start:
                for heard in self._heard:
                    heard.flush()
                self._stream.write(f"{CLEAR_BELOW}\n{self._render(snapshot)}{UP}")
                self._stream.flush()
                self._visible = True

    def leave(self, snapshot: Snapshot) -> None:
        if snapshot.elapsed_s >= LONG_PASS_S:
            self.end(snapshot)

    def end(self, snapshot: Snapshot) -> None:
        with self._lock:
            if self._at_line_start:
                self.hide()
                self._stream.write(words.summary(snapshot) + "\n")
                self._stream.flush()

    def close(self) -> None:
        self.hide()
        for heard in self._heard:
            heard.stop()

    def hide(self) -> None:
        if self._visible and os.getpid() == self._pid:
            self._stream.write(CLEAR_BELOW)
            self._stream.flush()
            self._visible = False

    def pass_on(self, stream: TextIO, text: str) -> int:
        """Write what other code writes.

        A process that the loop has forked has no bar. It must not take the lock, which another
        thread may have held.
        """
        if os.getpid() != self._pid:
            return stream.write(text)
        with self._lock:
            self.hide()
            self._at_line_start = text.endswith("\n") if text else self._at_line_start
            return stream.write(text)

    def _render(self, snapshot: Snapshot) -> str:
        with self._console.capture() as drawn:
            self._console.print(line(snapshot, self._columns(), self._unicode), end="")
        return drawn.get()

    def _columns(self) -> int:
        try:
            return max(20, os.get_terminal_size(self._stream.fileno()).columns - 1)
        except (OSError, ValueError):
            return 79


class _Heard:
    """Replaces a stream of ``sys``. Everything but writing is the stream's own."""

    def __init__(self, terminal: Terminal, name: str) -> None:
        self._terminal = terminal
        self._name = name
        self._stream: TextIO = getattr(sys, name)
        setattr(sys, name, self)

    def write(self, text: str) -> int:
        return self._terminal.pass_on(self._stream, text)

    def writelines(self, lines: Iterable[str]) -> None:
        for text in lines:
            self.write(text)

    def stop(self) -> None:
        if getattr(sys, self._name) is self:
            setattr(sys, self._name, self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
