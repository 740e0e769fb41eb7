"""The manifest of a checkpoint: the number of its format, what wrote it, and what it holds.

This version reads its own format and all older ones:

- Format 1 is the first one.
- Format 2 adds ``written_by``, and saves each rank's own part of an open accumulation window and
  of compressed gradients.
- Format 3 has no pickle: tensors are in files of safetensors, and everything else is JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

import torch
from torchbus import __version__ as VERSION

from torchbus_checkpoint.errors import CheckpointError, NewerFormat

FORMAT = 3
PICKLED = 2  # and older ones


class Program(TypedDict):
    """The program that wrote a checkpoint: its format, and versions by name."""

    version: int
    written_by: dict[str, str]


class Facts(TypedDict):
    """Where the run was. ``metric`` is the monitored value."""

    step: int
    epoch: int
    world_size: int
    metric: float | None
    batches_per_step: int


class Entry(TypedDict):
    """Size and checksum of a file."""

    bytes: int
    sha256: str


class Manifest(Program, Facts):
    """All of ``manifest.json``, without the checksum of itself."""

    files: dict[str, Entry]


def facts() -> Program:
    """Return what the manifest says of the program that writes it."""
    return {"version": FORMAT, "written_by": {"torchbus": VERSION, "torch": str(torch.__version__)}}


def check(content: Mapping[str, object], folder: Path) -> None:
    """Raise NewerFormat, with the version to install, if a later version has written it.

    Raises CheckpointError if it has no format number.
    """
    number = content.get("version")
    if type(number) is not int or number < 1:
        raise CheckpointError(
            f"checkpoint {folder} is damaged: its format is {number!r}, which is not the number of"
            " a format"
        )
    if number > FORMAT:
        writer = written_by(content).get("torchbus")
        remedy = (
            f"pip install 'torchbus-checkpoint>={writer}'"
            if writer
            else "install the version that wrote it"
        )
        raise NewerFormat(
            f"checkpoint {folder} has format {number}, written by torchbus"
            f" {writer or 'of a later version'}; this is torchbus {VERSION}, which reads formats 1"
            f" to {FORMAT}: {remedy}"
        )


def written_by(content: Mapping[str, object]) -> dict[str, str]:
    """Return the versions by name of the program, as far as the manifest has them."""
    found = content.get("written_by", {"torch": content.get("torch")})
    return (
        {name: version for name, version in found.items() if isinstance(version, str)}
        if isinstance(found, dict)
        else {}
    )
