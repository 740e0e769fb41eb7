"""Open files that may be anything: a folder, a pipe, another user's file, gigabytes of brackets."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

MAX_JSON_BYTES = 1 << 26
NUMBERS = {"step": 0, "world_size": 1, "batches_per_step": 1}  # with the least value of each


@contextlib.contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a regular file. Raises OSError for anything else, links as well.

    It does not wait for a pipe. The folder may be a link: whoever names it has chosen it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "a link in its place: put the file itself there") from None
        raise
    kind = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(kind):
        os.close(descriptor)
        raise (
            OSError(errno.EISDIR, "a folder in its place")
            if stat.S_ISDIR(kind)
            else OSError(errno.EINVAL, "not a regular file")
        )
    with os.fdopen(descriptor, "rb") as file:
        yield file


def json_file(path: Path) -> Any:
    """Read JSON. Raises OSError, and ValueError if it is no JSON, too long or too deep."""
    with opened(path) as file:
        if os.fstat(file.fileno()).st_size > MAX_JSON_BYTES:
            raise ValueError(f"it is longer than {MAX_JSON_BYTES} bytes")
        try:
            return json.loads(file.read())
        except RecursionError:
            raise ValueError("it is too deep") from None


def refuse_odd(manifest: Mapping[str, Any]) -> None:
    """Raise ValueError for values that torchbus does not write, such as files outside the folder.

    A right checksum proves nothing: whoever wrote the file could compute it.
    """
    for name, least in NUMBERS.items():
        value = manifest.get(name, least if name == "batches_per_step" else None)
        if type(value) is not int or value < least:
            raise ValueError(f"{name}: {str(value)[:80]!r}")
    if not isinstance(manifest.get("files"), dict):
        raise ValueError(f"files: {str(manifest.get('files'))[:80]!r}")
    for name, entry in manifest["files"].items():
        if os.path.basename(name) != name or name in ("", ".", ".."):
            raise ValueError(f"{name[:80]!r} is not the name of a file")
        if (
            not isinstance(entry, dict)
            or type(entry.get("bytes")) is not int
            or not isinstance(entry.get("sha256"), str)
        ):
            raise ValueError(f"{name}: {str(entry)[:80]!r}")
