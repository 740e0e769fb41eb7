"""A checkpoint on the disk: a folder that is there whole, or not at all.

::

    step-00000120/
        manifest.json       format, step, world size, size and sha256 of every file, and of itself
        model.pt            a plain state_dict (model-G.pt, model-D.pt where there are several)
        training.pt         optimizers, schedulers, scaler, registered objects
        rank-0.pt ...       position, random numbers and variables of each rank
        .metadata, __0_0.distcp ...   with sharded_save: tensors of models and optimizers, in parts

It is written under a hidden name, in a folder that is locked meanwhile, flushed to the disk, and renamed. Files are written
with ``os.open``: a session may have replaced ``open`` on the ranks that it started.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import torch

from torchbus_checkpoint.disk import formats, reading
from torchbus_checkpoint.disk.leftovers import PREVIOUS, remove
from torchbus_checkpoint.errors import CheckpointError

MANIFEST = "manifest.json"
Entry = dict[str, Any]


class _Hashed(io.RawIOBase):
    """A file that counts and hashes what is written to it, in order."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()
        self.num_bytes = 0
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            self._file.write(data)
        except OSError as error:
            self.error = error
            raise
        self.sha256.update(data)
        self.num_bytes += len(data)
        return len(data)

    def writable(self) -> bool:
        return True


# Write -------------------------------------------------------------------------------------------------------------


def write_file(folder: Path, name: str, content: Any) -> Entry:
    """Write one file of a checkpoint to the disk: bytes as they are, anything else by ``torch.save``.

    Returns its size and checksum. Raises OSError (disk full).
    """
    with os.fdopen(os.open(folder / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666), "wb") as file:
        hashed = _Hashed(file)
        try:
            hashed.write(content) if isinstance(content, bytes) else torch.save(content, hashed)  # type: ignore[arg-type]
        except RuntimeError:  # what torch's writer makes of an OSError
            raise hashed.error or OSError("torch.save failed") from None
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": hashed.num_bytes, "sha256": hashed.sha256.hexdigest()}


def entry(path: Path) -> Entry:
    """Size and checksum of a file that something else has written."""
    with os.fdopen(os.open(path, os.O_RDONLY), "rb") as file:
        return {"bytes": os.fstat(file.fileno()).st_size, "sha256": _sha256(file)}


def seal(partial: Path, final: Path, facts: dict[str, Any], files: dict[str, Entry]) -> None:
    """Write the manifest and give the folder its name; one that had the name before stays until then."""
    body = {**formats.facts(), **facts, "files": files}
    write_file(partial, MANIFEST, json.dumps(body | {"sha256": _digest(body)}, indent=1).encode())
    flush(partial)
    previous = final.with_name(f".{final.name}{PREVIOUS}")
    if final.exists():
        remove(previous)
        os.replace(final, previous)
    os.replace(partial, final)
    flush(final.parent)
    with contextlib.suppress(OSError):  # swept later
        remove(previous)


def flush(folder: Path) -> None:
    """Make the names in a folder last."""
    with contextlib.suppress(OSError):  # not every file system can
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# Read --------------------------------------------------------------------------------------------------------------


def found(parent: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first, those that can't be read among them. Raises CheckpointError where the folder can't be read."""
    try:
        names = os.listdir(parent)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CheckpointError(f"the folder {parent} can't be read: {error.strerror or error}") from None
    return [parent / name for name in sorted(names, key=_in_order) if not name.startswith(".") and _is_one(parent / name)]


def _in_order(name: str) -> list[tuple[int, str]]:
    """Numbers by their value: 100000000 steps come after 99999999."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", name)]


def _is_one(folder: Path) -> bool:
    try:
        os.stat(folder / MANIFEST)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # it says what it is when it is read
        return True
    return True


def manifest(folder: Path) -> dict[str, Any]:
    """What is said of a checkpoint. Raises CheckpointError, naming what is wrong with it."""
    try:
        content = reading.json_file(folder / MANIFEST)
        claimed = content.pop("sha256")
    except FileNotFoundError:
        raise CheckpointError(f"{folder} is no checkpoint: there is no {MANIFEST} in it") from None
    except (ValueError, KeyError, AttributeError, TypeError, OSError) as error:
        raise CheckpointError(f"checkpoint {folder} is damaged: {MANIFEST} can't be read ({error})") from None
    if claimed != _digest(content):
        raise CheckpointError(f"checkpoint {folder} is damaged: {MANIFEST} is not what was written")
    formats.check(content, folder)
    try:
        reading.refuse_odd(content)
    except ValueError as error:
        raise CheckpointError(f"checkpoint {folder} is damaged: {MANIFEST} can't be read ({error})") from None
    return dict(content)


def verify(folder: Path) -> dict[str, Any]:
    """The manifest, if every file is what was written. Raises CheckpointError."""
    content = manifest(folder)
    for name in content["files"]:
        with _opened(folder, name, content) as file:
            _check(file, folder / name, content["files"][name])
    return content


def read_file(folder: Path, name: str) -> Any:
    """The content of one file, checked. Nothing in it is run. Raises CheckpointError."""
    content = manifest(folder)
    with _opened(folder, name, content) as file:
        _check(file, folder / name, content["files"][name])
        file.seek(0)
        try:
            return torch.load(file, map_location="cpu", weights_only=True)
        except (RuntimeError, pickle.UnpicklingError, EOFError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise CheckpointError(f"checkpoint {folder}: {name} holds what a checkpoint does not hold: {error}") from None


@contextlib.contextmanager
def _opened(folder: Path, name: str, content: dict[str, Any]) -> Iterator[IO[bytes]]:
    if name not in content["files"]:
        raise CheckpointError(f"checkpoint {folder} has no {name}: it was written by {content.get('world_size')} ranks")
    try:
        with reading.opened(folder / name) as file:
            yield file
    except FileNotFoundError:
        raise CheckpointError(f"checkpoint {folder} is damaged: {name} is missing") from None
    except OSError as error:
        raise CheckpointError(f"checkpoint {folder} can't be read: {name}: {error.strerror or error}") from None


def _check(file: IO[bytes], path: Path, entry: Entry) -> None:
    num_bytes = os.fstat(file.fileno()).st_size
    if num_bytes != entry["bytes"]:
        raise CheckpointError(f"checkpoint {path.parent} is damaged: {path.name} has {num_bytes} bytes, {entry['bytes']} were written")
    if _sha256(file) != entry["sha256"]:
        raise CheckpointError(f"checkpoint {path.parent} is damaged: {path.name} is not what was written (its sha256 differs)")


def _sha256(file: IO[bytes]) -> str:
    sha256 = hashlib.sha256()
    while block := file.read(1 << 20):
        sha256.update(block)
    return sha256.hexdigest()


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
