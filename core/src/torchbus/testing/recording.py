"""A server that stands in for a service's, such as an experiment tracker's, and writes down what it is sent."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchbus.testing import recording_process
from torchbus.testing.scripts import Script, start


@dataclass(frozen=True)
class RecordingServer:
    """A running server: its ``process``, its ``port`` at 127.0.0.1, and the ``folder`` in which it writes."""

    process: Script
    port: int
    folder: Path

    def requests(self) -> list[dict[str, Any]]:
        """What it was sent until now: "path", "query" (lists by name), "authorization", "body" (as JSON where it is JSON)."""
        return [json.loads(line) for line in (self.folder / recording_process.REQUESTS).read_text().splitlines()]


@contextlib.contextmanager
def recording_server(answers: Path, folder: Path) -> Iterator[RecordingServer]:
    """Serve in a process of its own, which a test may kill.

    ``answers`` is a Python file with a function ``answer(path: str, body: Any, address: str) -> Any``, the JSON value to
    answer a request with, or None for "not found"; ``address`` is that of the server.
    """
    folder.mkdir()
    # As a file, not as a module: that would import torch, for which every test would wait.
    with start([sys.executable, recording_process.__file__, str(answers), str(folder)]) as process:
        port = folder / recording_process.PORT
        while not port.exists():
            time.sleep(0.05)
        yield RecordingServer(process, int(port.read_text()), folder)
