"""A checkpoint on the disk: a folder that exists whole, or not at all.

::

    step-00000120/
        manifest.json       format, step, world size, size and sha256 of every file, and of itself
        model.pt            a plain state_dict (model-G.pt, model-D.pt if there are several)
        training.pt         optimizers, schedulers, scaler, registered objects
        rank-0.pt ...       position, random numbers and variables of each rank
        .metadata, __0_0.distcp ...   with sharded_save: tensors of models and optimizers, in parts

A checkpoint is written under a hidden name, flushed to the disk, and then renamed. Meanwhile its
folder is locked. Files are written with ``os.open``, because a session may have replaced ``open``
on the ranks that it started.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import torch

from torchbus_checkpoint.disk import formats, reading
from torchbus_checkpoint.disk.formats import Entry, Facts, Manifest
from torchbus_checkpoint.disk.hashed import HashedFile
from torchbus_checkpoint.disk.leftovers import PREVIOUS, remove
from torchbus_checkpoint.errors import CheckpointError

MANIFEST = "manifest.json"


# Write -------------------------------------------------------------------------------------------


def write_file(folder: Path, name: str, content: object) -> Entry:
    """Write one file to the disk: bytes as they are, anything else with ``torch.save``.

    Returns its size and checksum. Raises OSError if the disk is full.
    """
    with os.fdopen(
        os.open(folder / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666), "wb"
    ) as file:
        hashed = HashedFile(file)
        try:
            if isinstance(content, bytes):
                hashed.write(content)
            else:
                torch.save(content, cast(IO[bytes], hashed))
        except RuntimeError as error:  # torch's writer turns an OSError into this
            raise hashed.error or OSError(f"torch.save failed: {error}") from None
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": hashed.num_bytes, "sha256": hashed.sha256.hexdigest()}


def entry(path: Path) -> Entry:
    """Return size and checksum of a file that something else has written."""
    with os.fdopen(os.open(path, os.O_RDONLY), "rb") as file:
        return {"bytes": os.fstat(file.fileno()).st_size, "sha256": _sha256(file)}


def seal(partial: Path, final: Path, facts: Facts, files: dict[str, Entry]) -> None:
    """Write the manifest, and give the folder its name.

    A checkpoint that had the name before stays until then.
    """
    body: dict[str, object] = {**formats.facts(), **facts, "files": files}
    write_file(partial, MANIFEST, json.dumps(body | {"sha256": _digest(body)}, indent=1).encode())
    flush(partial)
    previous = final.with_name(f".{final.name}{PREVIOUS}")
    if final.exists():
        remove(previous)
        os.replace(final, previous)
    os.replace(partial, final)
    flush(final.parent)
    with contextlib.suppress(OSError):  # the next run sweeps it
        remove(previous)


def flush(folder: Path) -> None:
    """Flush the names in a folder to the disk."""
    with contextlib.suppress(OSError):  # not every file system can
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# Read --------------------------------------------------------------------------------------------


def found(parent: Path) -> list[Path]:
    """Return the checkpoints in a folder, oldest first, including those that can't be read.

    Raises CheckpointError if the folder can't be read.
    """
    try:
        names = os.listdir(parent)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CheckpointError(
            f"the folder {parent} can't be read: {error.strerror or error}"
        ) from None
    return [
        parent / name
        for name in sorted(names, key=_in_order)
        if not name.startswith(".") and _is_one(parent / name)
    ]


def _in_order(name: str) -> list[tuple[int, str]]:
    """Order numbers by their value: 100000000 comes after 99999999."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", name)]


def _is_one(folder: Path) -> bool:
    try:
        os.stat(folder / MANIFEST)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # the error comes up again when it is read
        return True
    return True


def manifest(folder: Path) -> Manifest:
    """Read the manifest of a checkpoint. Raises CheckpointError, which says what is wrong."""
    try:
        content = reading.json_file(folder / MANIFEST)
        claimed = content.pop("sha256")
    except FileNotFoundError:
        raise CheckpointError(f"{folder} is not a checkpoint: it has no {MANIFEST}") from None
    except (ValueError, KeyError, AttributeError, TypeError, OSError) as error:
        raise CheckpointError(
            f"checkpoint {folder} is damaged: {MANIFEST} can't be read ({error})"
        ) from None
    if claimed != _digest(content):
        raise CheckpointError(
            f"checkpoint {folder} is damaged: {MANIFEST} has changed since it was written"
        )
    formats.check(content, folder)
    try:
        reading.refuse_odd(content)
    except ValueError as error:
        raise CheckpointError(
            f"checkpoint {folder} is damaged: {MANIFEST} can't be read ({error})"
        ) from None
    return cast(Manifest, content)


def verify(folder: Path) -> Manifest:
    """Return the manifest, if no file has changed. Raises CheckpointError."""
    content = manifest(folder)
    for name in content["files"]:
        with _opened(folder, name, content) as file:
            _check(file, folder / name, content["files"][name])
    return content


def read_file(folder: Path, name: str) -> Any:
    """Return the content of one file, if it is unchanged. Runs no code. Raises CheckpointError."""
    content = manifest(folder)
    with _opened(folder, name, content) as file:
        _check(file, folder / name, content["files"][name])
        file.seek(0)
        try:
            return torch.load(file, map_location="cpu", weights_only=True)
        except (
            RuntimeError,
            pickle.UnpicklingError,
            EOFError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
        ) as error:
            raise CheckpointError(
                f"checkpoint {folder}: {name} holds something that no checkpoint holds: {error}"
            ) from None


@contextlib.contextmanager
def _opened(folder: Path, name: str, content: Manifest) -> Iterator[IO[bytes]]:
    if name not in content["files"]:
        raise CheckpointError(
            f"checkpoint {folder} has no {name}: it was written by {content.get('world_size')}"
            " ranks"
        )
    try:
        with reading.opened(folder / name) as file:
            yield file
    except FileNotFoundError:
        raise CheckpointError(f"checkpoint {folder} is damaged: {name} is missing") from None
    except OSError as error:
        raise CheckpointError(
            f"checkpoint {folder} can't be read: {name}: {error.strerror or error}"
        ) from None


def _check(file: IO[bytes], path: Path, entry: Entry) -> None:
    num_bytes = os.fstat(file.fileno()).st_size
    if num_bytes != entry["bytes"]:
        raise CheckpointError(
            f"checkpoint {path.parent} is damaged: {path.name} has {num_bytes} bytes,"
            f" {entry['bytes']} were written"
        )
    if _sha256(file) != entry["sha256"]:
        raise CheckpointError(
            f"checkpoint {path.parent} is damaged: {path.name} has changed since it was written"
            " (its sha256 differs)"
        )


def _sha256(file: IO[bytes]) -> str:
    sha256 = hashlib.sha256()
    while block := file.read(1 << 20):
        sha256.update(block)
    return sha256.hexdigest()


def _digest(body: object) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
