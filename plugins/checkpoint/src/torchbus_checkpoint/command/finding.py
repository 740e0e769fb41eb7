"""The checkpoints that a path on the command line means."""

from __future__ import annotations

from pathlib import Path

from torchbus.plugin import UsageError

from torchbus_checkpoint.disk import choice, folder


def checkpoints(path: Path) -> list[Path]:
    """The one at the path, or those in the folder: also what has the name of one and is none. Raises UsageError where there are none."""
    if not path.is_dir():
        raise UsageError(f"there is no folder {path}")
    if (path / folder.MANIFEST).exists() or path.name.startswith(choice.PREFIX):
        return [path]
    there = {*folder.found(path), *(one for one in path.glob(f"{choice.PREFIX}*") if one.is_dir())}
    if not there:
        raise UsageError(f"there is no checkpoint in {path}: a checkpoint is a folder with a {folder.MANIFEST}")
    return sorted(there)
