"""The folder of one run: its name, its configuration, and files that are complete up to their last line."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import secrets
import time
from pathlib import Path
from typing import Any


def new_name() -> str:
    """"YYYYMMDD-HHMMSS-xxxx", in local time."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def write_config(folder: Path, config: dict[str, Any]) -> None:
    """Write config.json, whole. Raises OSError, and leaves what was there before."""
    part = folder / "config.json.new"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(config, indent=1) + "\n")
        os.replace(part, folder / "config.json")
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


class JsonLines:
    """One JSON object per line, written by one call of the system each: what was written is there, whatever becomes of the
    process. NaN and infinities become strings. The file is made with its first line, and its folder if need be."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._is_ragged = False

    def write(self, record: dict[str, Any]) -> None:
        """Raises OSError where there is no room for the whole line: then nothing of it is in the file, or it is ended before the next one."""
        line = json.dumps({name: _safe(value) for name, value in record.items()}).encode() + b"\n"
        try:
            descriptor = self._opened()
            line = b"\n" + line if self._is_ragged else line
            written = os.write(descriptor, line)
            if written < len(line):
                self._take_back(descriptor, written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            self.close()  # the file may be another one by the next time: a folder mounted anew
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
        """Remove the beginning of a line for whose end there is no room."""
        self._is_ragged = written > 0
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
            self._is_ragged = False


def _safe(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
