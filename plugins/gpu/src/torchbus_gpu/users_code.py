"""Which frames are the user's own code, and where in it the loop is."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from types import FrameType
from typing import NamedTuple

import torch
from torch.utils.data import dataloader

STANDARD_LIBRARY = tuple({os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")})
TORCH = os.path.dirname(os.path.realpath(torch.__file__)) + os.sep
INSTALLED = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
LOADER = dataloader.__file__


class Line(NamedTuple):
    """A line of source."""

    file: str
    number: int

    def __str__(self) -> str:
        return f"{os.path.relpath(self.file) if os.path.isfile(self.file) else self.file}:{self.number}"


@lru_cache(maxsize=4096)
def _is_foreign(file: str) -> bool:
    path = os.path.realpath(file)
    return file.startswith("<frozen") or path.startswith((*STANDARD_LIBRARY, TORCH)) or any(folder in path for folder in INSTALLED)


def is_users(frame: FrameType) -> bool:
    """Whether a frame runs neither torch, torchbus, the standard library nor an installed package."""
    return not (frame.f_globals.get("__name__") or "").startswith("torchbus") and not _is_foreign(frame.f_code.co_filename)


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame of this thread, and those that called it."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def line_of(frames: Iterable[FrameType]) -> Line | None:
    """The line of the innermost frame that is the user's. ``frames``: from the innermost outwards."""
    return next((Line(frame.f_code.co_filename, frame.f_lineno) for frame in frames if is_users(frame)), None)


def loader_line(frames: Sequence[FrameType]) -> Line | None:
    """If a frame runs inside a DataLoader (its workers' waiting, or a dataset's own code): the user's line that iterates it."""
    inside = [place for place, frame in enumerate(frames) if frame.f_code.co_filename == LOADER]
    return line_of(frames[inside[-1] :]) if inside else None
