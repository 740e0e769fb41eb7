"""Find the checkpoints that a path on the command line stands for."""

from __future__ import annotations

from pathlib import Path

from torchbus.plugin import UsageError

from torchbus_checkpoint.disk import choice, folder


def checkpoints(path: Path) -> list[Path]:
    """Return the checkpoint at the path, or those in the folder.

    A folder with the name of a checkpoint counts as one, even if it has no manifest. Raises
    UsageError if there are none.
    """
    if not path.is_dir():
        raise UsageError(f"there is no folder {path}")
    if (path / folder.MANIFEST).exists() or path.name.startswith(choice.PREFIX):
        return [path]
    there = {*folder.found(path), *(one for one in path.glob(f"{choice.PREFIX}*") if one.is_dir())}
    if not there:
        raise UsageError(
            f"there is no checkpoint in {path}: a checkpoint is a folder with a {folder.MANIFEST}"
        )
    return sorted(there)
