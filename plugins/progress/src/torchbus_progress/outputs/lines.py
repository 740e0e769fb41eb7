"""A line now and then, for files and pipes."""

from __future__ import annotations

import time
from typing import TextIO

from torchbus_progress import words
from torchbus_progress.snapshot import Snapshot


class Lines:
    """Writes at most one line in ``every_s`` seconds, and one at the end."""

    def __init__(self, stream: TextIO, every_s: float) -> None:
        self.pause_s = every_s
        self.place = f"a line on stderr every {every_s:g} s, by rank 0"
        self._stream = stream
        self._written_s = time.monotonic()

    def draw(self, snapshot: Snapshot) -> None:
        self._write(words.sentence(snapshot))

    def leave(self, snapshot: Snapshot) -> None:
        if time.monotonic() - self._written_s >= self.pause_s:
            self._write(words.summary(snapshot))

    def end(self, snapshot: Snapshot) -> None:
        self._write(words.summary(snapshot))

    def close(self) -> None:
        pass

    def _write(self, text: str) -> None:
        print(text, file=self._stream, flush=True)
        self._written_s = time.monotonic()
