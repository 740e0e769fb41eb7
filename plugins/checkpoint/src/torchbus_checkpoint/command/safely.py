"""Reading what anybody may have written: whatever is wrong with it becomes a CheckpointError of one line."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torchbus.errors import TorchbusError

from torchbus_checkpoint import folder
from torchbus_checkpoint.errors import CheckpointError

MOST_BYTES = 64 << 20  # of a manifest


@contextmanager
def reading(checkpoint: Path) -> Iterator[None]:
    """Inside, every error is a TorchbusError that names the checkpoint."""
    try:
        yield
    except TorchbusError as error:
        raise type(error)(printable(str(error))) from None
    except Exception as error:  # bytes that somebody made up may raise anything in torch's and Python's readers
        words = printable(str(error).strip().split("\n", 1)[0][:300])
        raise CheckpointError(f"checkpoint {printable(str(checkpoint))} can't be read: {type(error).__name__}: {words}") from None


def manifest(checkpoint: Path) -> dict[str, Any]:
    """The manifest, if it has the right fields, and names only files in the folder. Raises CheckpointError."""
    with reading(checkpoint):
        path = checkpoint / folder.MANIFEST
        if path.exists():
            _regular(path, MOST_BYTES)
        content = folder.manifest(checkpoint)
        for name, entry in content["files"].items():
            _check_name(checkpoint, name)
            if type(entry["bytes"]) is not int or type(entry["sha256"]) is not str:
                raise CheckpointError(f"checkpoint {checkpoint} is damaged: the manifest does not say what {name} is")
            if (checkpoint / name).exists():
                _regular(checkpoint / name)
        for name in ("step", "epoch", "world_size"):
            if type(content[name]) is not int:
                raise CheckpointError(f"checkpoint {checkpoint} is damaged: the manifest's {name} is no number")
    return content


def _check_name(checkpoint: Path, name: str) -> None:
    if name in ("", ".", "..") or os.path.basename(name) != name or not name.isprintable():
        raise CheckpointError(f"checkpoint {checkpoint} is damaged: {name!r} is no file in it")


def _regular(path: Path, most_bytes: int | None = None) -> None:
    """Nothing that is read without end, as a pipe or a device would be."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise CheckpointError(f"checkpoint {path.parent} is damaged: {path.name} is no regular file")
    if most_bytes is not None and found.st_size > most_bytes:
        raise CheckpointError(f"checkpoint {path.parent} is damaged: {path.name} has {found.st_size} bytes")


def printable(text: str) -> str:
    """Without characters that steer a terminal, or that it can't write."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
