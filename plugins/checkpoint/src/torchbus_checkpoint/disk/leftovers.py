"""Hidden folders that are not a checkpoint yet, or no longer.

Those that killed processes have left are removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from torchbus_rank0.whole_files import OpenHere, try_lock

PARTIAL, PREVIOUS, TRASH, SENDING = ".partial", ".previous", ".trash", ".sending"


def remove(folder: Path) -> None:
    """Remove a checkpoint. Its name goes first, so that nobody ever sees half of one."""
    if folder.exists():
        trash = folder.with_name(f".{folder.name.lstrip('.')}{TRASH}")
        _delete(trash)
        os.replace(folder, trash)
        _delete(trash)


def sweep(parent: Path) -> None:
    """Remove the folders that killed processes have left."""
    for entry in parent.glob(".*") if parent.is_dir() else ():
        with contextlib.suppress(OSError):
            _sweep(entry)


def heal(final: Path) -> None:
    """Do the same for one checkpoint, in a folder that no job has locked.

    Folders that another process is writing stay.
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
    own = OpenHere(os.open(partial, os.O_RDONLY | os.O_DIRECTORY))
    try:
        yield bool(try_lock(own.descriptor))
    finally:
        own.close()


def _sweep(entry: Path) -> None:
    if entry.name.endswith((PARTIAL, TRASH, SENDING)):
        _delete(entry)
    elif entry.name.endswith(PREVIOUS):
        final = entry.with_name(entry.name[1 : -len(PREVIOUS)])
        remove(entry) if final.exists() else os.replace(entry, final)


def _delete(entry: Path) -> None:
    """Delete a folder. Of a link, delete only the link: its target belongs to somebody."""
    if entry.is_symlink():
        entry.unlink(missing_ok=True)
    else:
        shutil.rmtree(entry, ignore_errors=True)
