"""The folder of one run: its configuration, and its files of lines."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path


def write_config(folder: Path, config: Mapping[str, object]) -> None:
    """Write config.json, whole. Raises OSError, and then leaves what was there before."""
    write_whole(folder / "config.json", (json.dumps(config, indent=1) + "\n").encode())


def write_whole(path: Path, content: bytes) -> None:
    """Write a file, whole. Raises OSError, and then leaves what was there before."""
    part = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content)
        os.replace(part, path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


class JsonLines:
    """A file with one JSON object per line.

    One system call writes a line, so it stays even if the process dies. NaN and infinities become
    strings. The first line creates the file, and its folder if needed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._is_ragged = False

    def write(self, record: Mapping[str, object]) -> None:
        """Write a line. Raises OSError if there is no room for all of it.

        Then the file has nothing of it, or its part is ended before the next line.
        """
        line = json.dumps({name: _safe(value) for name, value in record.items()}).encode() + b"\n"
        try:
            descriptor = self._opened()
            line = b"\n" + line if self._is_ragged else line
            written = os.write(descriptor, line)
            if written < len(line):
                self._take_back(descriptor, written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            self.close()  # the next time, the file may be another one: a folder mounted again
            raise
        self._is_ragged = False

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _opened(self) -> int:
        if self._descriptor is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        return self._descriptor

    def _take_back(self, descriptor: int, written: int) -> None:
        """Remove the beginning of a line, if there was no room for its end."""
        self._is_ragged = written > 0
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
            self._is_ragged = False


def _safe(value: object) -> object:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
