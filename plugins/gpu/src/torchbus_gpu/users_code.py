"""Finds the frames of the user's own code, and the line of the loop."""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Sequence
from functools import lru_cache
from types import FrameType
from typing import NamedTuple

import torch
from torch.utils.data import dataloader

from torchbus_launch.threads import Call
from torchbus_redaction.redactor import redacted

STANDARD_LIBRARY = tuple(
    {os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")}
)
TORCH = os.path.dirname(os.path.realpath(torch.__file__)) + os.sep
INSTALLED = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
LOADER = dataloader.__file__


class SourceLine(NamedTuple):
    """A line of source."""

    file: str
    number: int

    def __str__(self) -> str:
        file = os.path.relpath(self.file) if os.path.isfile(self.file) else self.file
        return f"{file}:{self.number}"


@lru_cache(maxsize=4096)
def _is_foreign(file: str) -> bool:
    path = os.path.realpath(file)
    return (
        file.startswith("<frozen")
        or path.startswith((*STANDARD_LIBRARY, TORCH))
        or any(folder in path for folder in INSTALLED)
    )


def is_users(frame: FrameType | Call) -> bool:
    """Whether a frame runs user code: not torch, torchbus, the standard library or a package."""
    return not (frame.f_globals.get("__name__") or "").startswith("torchbus") and not _is_foreign(
        frame.f_code.co_filename
    )


def line_of(frames: Iterable[FrameType | Call]) -> SourceLine | None:
    """Return the line of the innermost frame of the user. ``frames`` begin with the innermost."""
    return next(
        (
            SourceLine(frame.f_code.co_filename, frame.f_lineno or 0)
            for frame in frames
            if is_users(frame)
        ),
        None,
    )


def loader_line(frames: Sequence[FrameType | Call]) -> SourceLine | None:
    """Return the user's line that iterates a DataLoader, if a frame is inside of one.

    It may wait for workers there, or run the code of a dataset.
    """
    inside = [place for place, frame in enumerate(frames) if frame.f_code.co_filename == LOADER]
    return line_of(frames[inside[-1] :]) if inside else None


MONITOR = SourceLine("torchbus-gpu", 1)


class Notices:
    """Issues each warning once. ``warned``: the texts so far, in order."""

    def __init__(self) -> None:
        self.warned: list[str] = []

    def warn(self, text: str, line: SourceLine | None = None) -> None:
        """Warn once, as if the line of the user's loop had done it.

        If warnings are errors, write it to stderr: nothing would catch an exception in this thread.
        """
        text = redacted(text)
        if text in self.warned:
            return
        self.warned.append(text)
        where = line or MONITOR
        try:
            warnings.warn_explicit(text, UserWarning, where.file, where.number)
        except UserWarning:
            with contextlib.suppress(OSError):
                print(f"{where}: {text}", file=sys.stderr)
