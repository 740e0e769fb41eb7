"""The folder of one run: its name, its configuration, and files that are complete up to their last line."""

from __future__ import annotations

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
    """Write config.json, whole."""
    write(folder / "config.json.new", json.dumps(config, indent=1) + "\n", os.O_TRUNC)
    os.replace(folder / "config.json.new", folder / "config.json")


def write(path: Path, text: str, flags: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o666)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


class JsonLines:
    """One JSON object per line, written by one call of the system each: what was written is there, whatever becomes of the
    process. NaN and infinities become strings. The file is made with its first line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def write(self, record: dict[str, Any]) -> None:
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        line = json.dumps({name: _safe(value) for name, value in record.items()})
        os.write(self._descriptor, f"{line}\n".encode())

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None


def _safe(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
