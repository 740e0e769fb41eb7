"""``torchbus checkpoint verify``: check that every file is unchanged, and can be read."""

from __future__ import annotations

from pathlib import Path

from torchbus_checkpoint.command import finding, safely
from torchbus_checkpoint.command.contents import described
from torchbus_checkpoint.command.show import amount
from torchbus_checkpoint.disk import folder, metadata
from torchbus_checkpoint.disk.formats import Entry
from torchbus_checkpoint.errors import CheckpointError


def verify(path: Path) -> int:
    """Print a line about each checkpoint. Return 1 if one of them is not whole."""
    return max([_verify_one(checkpoint) for checkpoint in finding.checkpoints(path)])


def _verify_one(checkpoint: Path) -> int:
    try:
        files = check(checkpoint)
    except CheckpointError as error:
        print(error)
        return 1
    print(
        f"{safely.printable(str(checkpoint))}: whole, {len(files)} files with"
        f" {amount(sum(entry['bytes'] for entry in files.values()))}"
    )
    return 0


def check(checkpoint: Path) -> dict[str, Entry]:
    """Return the files, if all are unchanged and hold no code. Raises CheckpointError."""
    manifest = safely.manifest(checkpoint)
    files = manifest["files"]
    with safely.reading(checkpoint):
        missing = next(
            (rank for rank in range(manifest["world_size"]) if f"rank-{rank}.pt" not in files), None
        )
        if missing is not None:
            raise CheckpointError(
                f"checkpoint {checkpoint} is damaged: the manifest has no rank-{missing}.pt"
            )
        folder.verify(checkpoint)
        for name in files:
            if name.endswith(".pt"):
                folder.read_file(checkpoint, name)
        described(checkpoint, manifest)
        if metadata.NAME in files:
            _check_parts(checkpoint, files)
    return files


def _check_parts(checkpoint: Path, files: dict[str, Entry]) -> None:
    for part in metadata.read(checkpoint).storage_data.values():
        if part.relative_path not in files:
            raise CheckpointError(
                f"checkpoint {checkpoint} is damaged: {metadata.NAME} names {part.relative_path},"
                " which is not one of its files"
            )
