"""A checkpoint on disk: a folder that becomes visible only when it is complete.

::

    step-00000120/
        manifest.json             format, step, world size, size and sha256 of every file, and of
                                  itself
        model.safetensors         a plain state_dict (model-G, model-D if there are several)
        training.safetensors      optimizers, schedulers, scaler, registered objects
        rank-0.safetensors ...    position, random numbers and variables of each rank
        part-0.safetensors ...    with sharded_save: the tensors of models and optimizers that rank
                                  0 has, and its parts of those that are sharded

A checkpoint is written under a hidden name, flushed to the disk, and then renamed. Until then its
folder is locked. Files are written with ``os.open``, because a session may have replaced ``open``
on the ranks that it started."""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import io
import json
import os
import pickle
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

from torchbus_checkpoint.disk import formats, pickled, tensors
from torchbus_checkpoint.disk.formats import PREVIOUS, FileEntry, Manifest, RunProgress, remove
from torchbus_checkpoint.errors import CheckpointError, Damaged
from torchbus_checkpoint.state.jsonable import read_json

Sent = dict[str, FileEntry | str]
"""A rank's files by name: the size and checksum of a written file, or its content in base64."""


def pack(content: object) -> str:
    """Return the content of a file that this rank can't write, as text in base64."""
    buffer = io.BytesIO()
    tensors.write(content, buffer)
    return base64.b64encode(buffer.getvalue()).decode()


def unpack(partial: Path, theirs: Sent) -> dict[str, FileEntry]:
    """Write the packed files of a rank. Return sizes and checksums of all its files.

    Raises OSError if a file can't be written.
    """
    return {
        name: (write_file(partial, name, base64.b64decode(one)) if isinstance(one, str) else one)
        for name, one in theirs.items()
    }


MANIFEST, SUFFIX = "manifest.json", ".safetensors"
LONGEST = 300
BAD_CONTENT = (
    RuntimeError,
    pickle.UnpicklingError,
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    OverflowError,
    AssertionError,
    MemoryError,
)


# Write -------------------------------------------------------------------------------------------


def write_file(folder: Path, name: str, content: object, once: bool = True) -> FileEntry:
    """Write one file to the disk: bytes as they are, anything else as safetensors.

    Returns the file's size and checksum. Raises OSError, for instance if the disk is full.
    """
    with os.fdopen(
        os.open(folder / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666), "wb"
    ) as file:
        hashed = cast(Any, HashedFile(file))
        if isinstance(content, bytes):
            hashed.write(content)
        else:
            tensors.write(content, hashed, once)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": hashed.num_bytes, "sha256": hashed.sha256.hexdigest()}


def seal(partial: Path, final: Path, facts: RunProgress, files: dict[str, FileEntry]) -> None:
    """Write the manifest, and rename the folder to its final name.

    A checkpoint that already has this name remains until then.
    """
    body: dict[str, object] = {**formats.facts(), **facts, "files": files}
    _write_manifest(partial, MANIFEST, body)
    flush(partial)
    previous = final.with_name(f".{final.name}{PREVIOUS}")
    if final.exists():
        remove(previous)
        os.replace(final, previous)
    os.replace(partial, final)
    flush(final.parent)
    with contextlib.suppress(OSError):  # if this fails, the next run removes it
        remove(previous)


def put_metric(folder: Path, metric: float | None) -> bool:
    """Replace the monitored value of a checkpoint. Returns False if its manifest can't be read.

    Raises CheckpointError if the manifest can't be written.
    """
    try:
        body = cast(dict[str, object], manifest(folder))
    except CheckpointError:
        return False
    partial = folder / f".{MANIFEST}{formats.PARTIAL}"
    try:
        partial.unlink(missing_ok=True)
        _write_manifest(folder, partial.name, body | {"metric": metric})
        os.replace(partial, folder / MANIFEST)
    except OSError as error:
        raise CheckpointError(
            f"checkpoint {folder}: its value could not be written: {error.strerror or error}"
        ) from error
    flush(folder)
    return True


def _write_manifest(folder: Path, name: str, body: dict[str, object]) -> None:
    write_file(folder, name, json.dumps(body | {"sha256": _digest(body)}, indent=1).encode())


def flush(folder: Path) -> None:
    """Flush a folder's directory entries to disk."""
    with contextlib.suppress(OSError):  # not every file system supports this
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
    """Return a sort key that orders numbers by value: 100000000 comes after 99999999."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", name)]


def _is_one(folder: Path) -> bool:
    try:
        os.stat(folder / MANIFEST)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # reading the manifest will raise the error again
        return True
    return True


def _lack(folder: Path) -> str:
    """Say why a folder without a manifest is not a checkpoint, and what to name instead."""
    if folder.is_file():
        return (
            "it is a file. Read a file of another library by torch.load, and give its state_dict to"
            " the model"
        )
    lack = f"it has no {MANIFEST}" if folder.exists() else "there is no such folder"
    return f"{lack}. Name a folder that has one, such as checkpoints/step-00000120"


def manifest(folder: Path) -> Manifest:
    """Read the manifest of a checkpoint. Raises CheckpointError, which says what is wrong."""
    try:
        content = json_file(folder / MANIFEST)
        claimed = content.pop("sha256")
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(f"{folder} is not a checkpoint: {_lack(folder)}") from None
    except (ValueError, KeyError, AttributeError, TypeError, OSError) as error:
        raise Damaged(
            f"checkpoint {folder} is damaged: {MANIFEST} can't be read ({error})"
        ) from None
    if claimed != _digest(content):
        raise Damaged(
            f"checkpoint {folder} is damaged: {MANIFEST} has changed since it was written"
        )
    formats.check(content, folder)
    try:
        refuse_odd(content)
    except ValueError as error:
        raise Damaged(
            f"checkpoint {folder} is damaged: {MANIFEST} can't be read ({error})"
        ) from None
    return cast(Manifest, content)


def verify(folder: Path) -> Manifest:
    """Return the manifest. Raises CheckpointError if a file has changed or is missing."""
    content = manifest(folder)
    for name in content["files"]:
        with folder_opened(folder, name, content) as file:
            _check(file, folder / name, content["files"][name])
    return content


def name_of(content: Manifest, stem: str) -> str:
    """Return the name of a file, such as ``training.safetensors``, or ``training.pt`` before.

    ``training.pt`` is the name in formats 1 and 2.
    """
    return f"{stem}.pt" if content["version"] <= formats.PICKLED else f"{stem}{SUFFIX}"


def read_file(folder: Path, stem: str) -> Any:
    """Return the content of one file, without running code from it.

    Raises CheckpointError if the file has changed or can't be read.
    """
    content = manifest(folder)
    name = name_of(content, stem)
    with folder_opened(folder, name, content) as file:
        _check(file, folder / name, content["files"][name])
        if content["version"] <= formats.PICKLED:
            return pickled.read(file)
        with tensors.reading(file) as reader:
            return reader.content()


def described(folder: Path, stem: str, content: Manifest) -> Any:
    """Return the content of one file, with tensors on the meta device since format 3.

    Raises CheckpointError if the file can't be read.
    """
    name = name_of(content, stem)
    with folder_opened(folder, name, content) as file:
        if content["version"] <= formats.PICKLED:
            return pickled.read(file)
        with tensors.reading(file) as reader:
            return reader.content(reader.empty)


@contextlib.contextmanager
def folder_opened(folder: Path, name: str, content: Manifest) -> Iterator[IO[bytes]]:
    """Open a file of the manifest, after a check of its size.

    Errors inside become a CheckpointError, because the file's content is the cause.
    """
    if name not in content["files"]:
        raise CheckpointError(
            f"checkpoint {folder} has no {name}: it was written by {content.get('world_size')}"
            " ranks"
        )
    try:
        with reading_opened(folder / name) as file, blamed(folder, name):
            _check_size(file, folder / name, content["files"][name])
            yield file
    except FileNotFoundError:
        raise Damaged(f"checkpoint {folder} is damaged: {name} is missing") from None
    except OSError as error:
        raise CheckpointError(
            f"checkpoint {folder} can't be read: {name}: {error.strerror or error}"
        ) from None


@contextlib.contextmanager
def blamed(folder: Path, name: str) -> Iterator[None]:
    """Turn what readers raise for made-up content into a CheckpointError that names the file."""
    try:
        yield
    except CheckpointError:
        raise
    except BAD_CONTENT as error:
        message = str(error)[:LONGEST]
        raise CheckpointError(
            f"checkpoint {folder}: {name} holds content that torchbus did not write: {message}"
        ) from None


def _check_size(file: IO[bytes], path: Path, entry: FileEntry) -> None:
    num_bytes = os.fstat(file.fileno()).st_size
    if num_bytes != entry["bytes"]:
        raise Damaged(
            f"checkpoint {path.parent} is damaged: {path.name} has {num_bytes} bytes,"
            f" {entry['bytes']} were written"
        )


def _check(file: IO[bytes], path: Path, entry: FileEntry) -> None:
    if _sha256(file) != entry["sha256"]:
        raise Damaged(
            f"checkpoint {path.parent} is damaged: {path.name} has changed since it was written"
            " (its sha256 differs)"
        )
    file.seek(0)


def _sha256(file: IO[bytes]) -> str:
    sha256 = hashlib.sha256()
    while block := file.read(1 << 20):
        sha256.update(block)
    return sha256.hexdigest()


def _digest(body: object) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


class HashedFile:
    """A file that counts and hashes the bytes that are written to it, in order."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()
        self.num_bytes = 0

    def write(self, data: Any) -> int:
        self._file.write(data)
        self.sha256.update(data)
        self.num_bytes += len(data)
        return len(data)


MAX_JSON_BYTES = 1 << 26
MOST = (1 << 63) - 1
NUMBERS = {"step": 0, "world_size": 1, "batches_per_step": 1}  # the least value of each


class Unfit(OSError):
    """Raised if a path is not a regular file, or the file is too long."""


@contextlib.contextmanager
def reading_opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a regular file. Raises Unfit for anything else, including links; else OSError.

    A pipe is not waited for. The folder itself may be a link, as the user has named it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Unfit(errno.ELOOP, "a link in its place: put the file itself there") from None
        raise
    kind = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(kind):
        os.close(descriptor)
        raise (
            Unfit(errno.EISDIR, "a folder in its place")
            if stat.S_ISDIR(kind)
            else Unfit(errno.EINVAL, "not a regular file")
        )
    with os.fdopen(descriptor, "rb") as file:
        yield file


def json_file(path: Path) -> Any:
    """Read JSON. Raises OSError, or ValueError if it is invalid, too long or nested too deeply."""
    with reading_opened(path) as file:
        if os.fstat(file.fileno()).st_size > MAX_JSON_BYTES:
            raise ValueError(f"it is longer than {MAX_JSON_BYTES} bytes")
        return read_json(file.read())


def refuse_odd(manifest: Mapping[str, Any]) -> None:
    """Raise ValueError for values that torchbus does not write, such as files outside the folder.

    A matching checksum proves nothing, because the author of the file could compute it.
    """
    for name, least in NUMBERS.items():
        value = manifest.get(name, least if name == "batches_per_step" else None)
        if type(value) is not int or not least <= value <= MOST:
            raise ValueError(f"{name}: {str(value)[:80]!r}")
    metric = manifest.get("metric")
    if isinstance(metric, int) and abs(metric) > MOST:
        raise ValueError("metric: a number that is too large")
    if not isinstance(manifest.get("files"), dict):
        raise ValueError(f"files: {str(manifest.get('files'))[:80]!r}")
    for name, entry in manifest["files"].items():
        if b"\0" in os.fsencode(name) or os.path.basename(name) != name or name in ("", ".", ".."):
            raise ValueError(f"{name[:80]!r} is not the name of a file")
        if (
            not isinstance(entry, dict)
            or type(entry.get("bytes")) is not int
            or not 0 <= entry["bytes"] <= MOST
            or not isinstance(entry.get("sha256"), str)
        ):
            raise ValueError(f"{name}: {str(entry)[:80]!r}")
