"""What the script prints, line by line, on every rank: the session silences all but the first."""

from __future__ import annotations

import io
import sys
from typing import TextIO

from torchbus_verify.record.writing import Writer


class Printed(io.TextIOBase):
    """Stands in for ``sys.stdout``: passes everything on, and writes down whole lines."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._stream: TextIO = sys.stdout
        self._begun = ""

    def install(self) -> None:
        self._stream = sys.stdout
        sys.stdout = self

    def remove(self) -> None:
        """What was begun counts as a line."""
        if self._begun:
            self._writer.write("line", text=self._begun)
        if sys.stdout is self:
            sys.stdout = self._stream

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._writer.write("line", text=line.rsplit("\r", 1)[-1])
        return self._stream.write(text)

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return False
