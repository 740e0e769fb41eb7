"""A server that stands in for a service, such as an experiment tracker, and records requests."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchbus_testing import recording_process
from torchbus_testing.scripts import Script, start


@dataclass(frozen=True)
class RecordingServer:
    """A running server.

    ``port`` is its port at 127.0.0.1, and ``folder`` the folder to which it writes.
    """

    process: Script
    port: int
    folder: Path

    def requests(self) -> list[dict[str, Any]]:
        """Return the requests so far.

        Each has "path", "query" (lists by name), "authorization" and "body" (parsed if it is JSON).
        """
        return [
            json.loads(line)
            for line in (self.folder / recording_process.REQUESTS).read_text().splitlines()
        ]


@contextlib.contextmanager
def recording_server(answers: Path, folder: Path) -> Iterator[RecordingServer]:
    """Serve in a separate process, which a test may kill.

    ``answers`` is a Python file with ``def answer(path: str, body: Any, address: str) -> Any``. The
    function returns the JSON value of the response, or None for "not found". ``address`` is the
    address of the server.
    """
    folder.mkdir()
    # It runs as a file: as a module, it would import torch, and every test would wait for that.
    with start([sys.executable, recording_process.__file__, str(answers), str(folder)]) as process:
        port = folder / recording_process.PORT
        while not port.exists():
            time.sleep(0.05)
        yield RecordingServer(process, int(port.read_text()), folder)
