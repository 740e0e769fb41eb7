"""Counts how often the host waits for the device, with the line that made it wait."""

from __future__ import annotations

import linecache
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torchbus.compat.python import current_frame

from torchbus_simulator.build import extension

TORCH = os.path.dirname(os.path.realpath(torch.__file__)) + os.sep
OWN = os.path.dirname(os.path.realpath(__file__)) + os.sep


class Wait(NamedTuple):
    """The host waited: by which operation, on which line outside of torch."""

    what: str
    file: str
    line: int
    thread: str

    def __str__(self) -> str:
        code = linecache.getline(self.file, self.line).strip()
        return f"{self.what} at {os.path.basename(self.file)}:{self.line}: {code}"


@contextmanager
def host_waits() -> Iterator[list[Wait]]:
    """Collect the waits of this process inside the block, of all its threads.

    ``.item()``, ``.cpu()``, ``bool(tensor)``, blocking copies, ``synchronize``, and operations
    whose sizes depend on values.
    """
    told: list[Wait] = []
    extension().listen(lambda what: told.append(_here(what)))
    try:
        yield told
    finally:
        extension().listen(None)


def _here(what: str) -> Wait:
    frame = current_frame(2)
    found = frame
    while found.f_back is not None and found.f_code.co_filename.startswith((TORCH, OWN)):
        found = found.f_back
    outside = not found.f_code.co_filename.startswith((TORCH, OWN))
    place = found if outside else frame
    return Wait(what, place.f_code.co_filename, place.f_lineno, threading.current_thread().name)
