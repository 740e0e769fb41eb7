"""The manifest of a checkpoint: its format number, the program that wrote it, and its contents.

This version reads its own format and all older ones:

- Format 1 is the first format.
- Format 2 adds ``written_by``, and each rank's part of an open accumulation window and of
  compressed gradients.
- Format 3 has no pickle: tensors are in safetensors files, and everything else is JSON."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypedDict

import torch
from torchbus import __version__ as VERSION

from torchbus_checkpoint.errors import Damaged, NewerFormat
from torchbus_rank0.whole_files import OpenHere, try_lock

FORMAT = 3
PICKLED = 2  # this format and older ones are pickles


class ProgramVersions(TypedDict):
    """The program that wrote a checkpoint: its format, and versions by name."""

    version: int
    written_by: dict[str, str]


class RunProgress(TypedDict):
    """Progress of the run. ``metric`` is the monitored value."""

    step: int
    epoch: int
    world_size: int
    metric: float | None
    batches_per_step: int


class FileEntry(TypedDict):
    """Size and checksum of a file."""

    bytes: int
    sha256: str


class Manifest(ProgramVersions, RunProgress):
    """The contents of ``manifest.json``, without its own checksum."""

    files: dict[str, FileEntry]


def facts() -> ProgramVersions:
    """Return the manifest's entry about the program that writes it."""
    return {"version": FORMAT, "written_by": {"torchbus": VERSION, "torch": str(torch.__version__)}}


def check(content: Mapping[str, object], folder: Path) -> None:
    """Raise NewerFormat, with the version to install, if a later version wrote the checkpoint.

    Raises Damaged if the manifest has no format number.
    """
    number = content.get("version")
    if type(number) is not int or number < 1:
        raise Damaged(
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
    """Return the versions by name of the program, as far as the manifest has them.

    An error message names the version to install, so other texts are left out.
    """
    found = content.get("written_by", {"torch": content.get("torch")})
    items = found.items() if isinstance(found, dict) else ()
    return {
        name: version
        for name, version in items
        if isinstance(version, str) and re.fullmatch(r"[\w.+!-]{1,50}", version, re.ASCII)
    }


PARTIAL, PREVIOUS, TRASH, SENDING = ".partial", ".previous", ".trash", ".sending"


def remove(folder: Path) -> None:
    """Delete a checkpoint. It is renamed first, so that readers never see a partial checkpoint."""
    if folder.exists():
        trash = folder.with_name(f".{folder.name.lstrip('.')}{TRASH}")
        _delete(trash)
        os.replace(folder, trash)
        _delete(trash)


def sweep(parent: Path) -> None:
    """Remove the hidden folders of killed processes, and restore a checkpoint set aside in one."""
    for entry in parent.glob(".*") if parent.is_dir() else ():
        with contextlib.suppress(OSError):
            _sweep(entry)


def heal(final: Path) -> None:
    """Do the same as ``sweep`` for one checkpoint, in a folder that no job has locked.

    Folders that another process is writing are left alone.
    """
    for name in os.listdir(final.parent) if final.parent.is_dir() else ():
        entry = final.with_name(name)
        if re.fullmatch(rf"\.{re.escape(final.name)}(\.\d+{PARTIAL}|{TRASH}|{PREVIOUS})", name):
            with contextlib.suppress(OSError), claimed(entry) as is_dead:
                if is_dead:
                    _sweep(entry)


@contextlib.contextmanager
def claimed(partial: Path) -> Iterator[bool]:
    """Lock a folder for this process.

    Yields False if another process has locked it, or if folders can't be locked (NFS).
    """
    mine = OpenHere(os.open(partial, os.O_RDONLY | os.O_DIRECTORY))
    try:
        yield bool(try_lock(mine.descriptor))
    finally:
        mine.close()


def _sweep(entry: Path) -> None:
    if entry.name.endswith((PARTIAL, TRASH, SENDING)):
        _delete(entry)
    elif entry.name.endswith(PREVIOUS) and entry.name[1 : -len(PREVIOUS)] not in ("", ".", ".."):
        final = entry.with_name(entry.name[1 : -len(PREVIOUS)])
        remove(entry) if final.exists() else os.replace(entry, final)


def _delete(entry: Path) -> None:
    """Delete a folder. If a link is in its place, delete only the link and not its target.

    A pipe is deleted without opening it, which would block. A regular file, which may be the
    user's, is left alone.
    """
    with contextlib.suppress(FileNotFoundError):
        mode = os.lstat(entry).st_mode
        if stat.S_ISDIR(mode):
            shutil.rmtree(entry, ignore_errors=True)
        elif not stat.S_ISREG(mode):
            entry.unlink()
