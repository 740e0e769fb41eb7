"""Find the folders of runs, and the one that a word on the command line stands for."""

from __future__ import annotations

import os
from pathlib import Path

from torchbus.plugin import UsageError

FOLDER = "torchbus-logs"


def is_run(folder: Path) -> bool:
    return os.path.lexists(folder / "config.json") or any(folder.glob("metrics-rank*.jsonl"))


def all_runs(folder: Path) -> list[Path]:
    """Return the runs in a folder, oldest first. Their names begin with the time.

    Raises UsageError if there is no such folder.
    """
    if not folder.is_dir():
        raise UsageError(
            f'there is no folder {folder}: session(logger="local") writes runs to {FOLDER}, or name'
            " another folder"
        )
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and is_run(path))
    except OSError as error:
        raise UsageError(f"{folder} can't be read: {error.strerror}") from None


def leads_out(path: Path) -> bool:
    """Whether it is a link to a folder elsewhere, which the user has not named."""
    return path.is_symlink() and path.resolve().parent != path.parent.resolve()


def find(word: str, folder: Path) -> Path:
    """Return the run of a path, a name, the beginning of a name, or "last".

    Raises UsageError if there is none, or if there are several.
    """
    if Path(word).is_dir() and is_run(Path(word)):
        return Path(word)
    known = all_runs(folder)
    if word == "last" and known:
        return known[-1]
    meant = [path for path in known if path.name == word] or [
        path for path in known if path.name.startswith(word)
    ]
    if len(meant) == 1:
        return meant[0]
    if meant:
        raise UsageError(
            f"{word!r} may be any of {', '.join(path.name for path in meant[:5])}: write more of"
            " the name"
        )
    raise UsageError(
        f"there is no run {word!r} in {folder}; `torchbus runs` lists them ({len(known)} in"
        f" {folder})"
    )
