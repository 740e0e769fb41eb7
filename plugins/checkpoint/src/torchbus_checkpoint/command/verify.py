"""``torchbus checkpoint verify``: check that every file is unchanged, and can be read."""

from __future__ import annotations

from pathlib import Path

from torchbus_checkpoint.command import finding, safely
from torchbus_checkpoint.command.contents import described
from torchbus_checkpoint.command.show import amount
from torchbus_checkpoint.disk import folder, saving
from torchbus_checkpoint.disk.formats import Entry, Manifest
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
        for rank in range(manifest["world_size"]):
            name = folder.name_of(manifest, f"rank-{rank}")
            if name not in files:
                raise CheckpointError(
                    f"checkpoint {checkpoint} is damaged: the manifest has no {name}"
                )
        folder.verify(checkpoint)
        _read_all(checkpoint, manifest)
        if "groups" in folder.described(checkpoint, saving.TRAINING, manifest):
            from torchbus_checkpoint.disk import parts

            parts.index(checkpoint)
        described(checkpoint, manifest)
    return files


def _read_all(checkpoint: Path, manifest: Manifest) -> None:
    suffix = folder.name_of(manifest, "")
    for name in manifest["files"]:
        if name.endswith(suffix):
            folder.read_file(checkpoint, name.removesuffix(suffix))
