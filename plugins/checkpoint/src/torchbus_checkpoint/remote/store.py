"""A folder at a URL, through fsspec. Each of its errors becomes a StoreError."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from torchbus.plugin import UsageError

from torchbus_checkpoint.disk.folder import MANIFEST, MAX_JSON_BYTES, Unfit, reading_opened
from torchbus_checkpoint.errors import CheckpointError

NAME = re.compile(r"(step-(\d+))(?:\.(\d+))?")


@dataclass(frozen=True, order=True)
class There:
    """A checkpoint in a store. ``local`` is its name in a local folder."""

    step: int
    revision: int
    name: str
    local: str
    is_whole: bool


def there(store: Store) -> list[There]:
    """Return the checkpoints in a store, oldest first, including unfinished ones.

    Raises StoreError.
    """
    found = []
    for name, files in store.sizes().items():
        known = NAME.fullmatch(name)
        if known:
            found.append(
                There(int(known[2]), int(known[3] or 1), name, known[1], MANIFEST in files)
            )
    return sorted(found)


def free(local: str, known: list[There]) -> str:
    """Return the name to write to: the name of an unfinished upload, or a new one."""
    alike = [one for one in known if one.local == local]
    begun = next((one.name for one in alike if not one.is_whole), None)
    last = max((one.revision for one in alike), default=0)
    return begun or (local if not last else f"{local}.{last + 1}")


def superseded(known: list[There]) -> Iterator[There]:
    """Yield superseded checkpoints of the same step, and unfinished ones before a complete one."""
    for index, one in enumerate(known):
        if any(
            later.is_whole and (later.local == one.local or not one.is_whole)
            for later in known[index + 1 :]
        ):
            yield one


def remove(store: Store, one: There) -> None:
    """Delete a checkpoint, its manifest first, so that readers never see a partial checkpoint."""
    store.remove(f"{one.name}/{MANIFEST}")
    store.remove_folder(one.name)


def digest(data: bytes | None) -> str:
    """Return the digest of a manifest. Two checkpoints with equal digests are the same."""
    return hashlib.sha256(data or b"").hexdigest()


FIRST_S, LAST_S, TRIES = 0.5, 60.0, 5
Answer = TypeVar("Answer")


def waits(first_s: float | None = None) -> Callable[[], float]:
    """Return a function whose calls return 0.5, 1, 2, ... and at last always 60 seconds."""
    next_s = [FIRST_S if first_s is None else first_s]

    def wait_s() -> float:
        now_s, next_s[0] = next_s[0], min(next_s[0] * 2, LAST_S)
        return now_s

    return wait_s


def patiently(ask: Callable[[], Answer]) -> Answer:
    """Call ``ask`` with retries. Raises the last StoreError after ``TRIES`` tries.

    Used at the start of a job, which can't continue without the answer.
    """
    wait_s, tries = waits(), TRIES
    while True:
        try:
            return ask()
        except StoreError:
            tries -= 1
            if not tries:
                raise
        threading.Event().wait(wait_s())


BLOCK_BYTES = 1 << 23
WITH_FOLDERS = {
    "file",
    "local",
    "memory",
    "sftp",
    "ssh",
    "ftp",
    "smb",
    "hdfs",
    "webhdfs",
    "arrow_hdfs",
}
"""File systems in which a folder must exist before a file in it.

A bucket has no folders, and ``makedirs`` might create a bucket.
"""
Moved = Callable[[int], None]


class StoreError(Exception):
    """An error of the store, its library or the network."""


class Missing(StoreError):
    """The store has no such file."""


class Store:
    """Reads and writes files. Names are relative to the URL.

    In a local folder (``file://``), only regular files are read, and no link is followed: all
    methods that read raise CheckpointError for anything else, and for what is too long.
    """

    def __init__(self, url: str) -> None:
        self.url = shown(url)
        self._fs, self._root = file_system(url)
        protocols = self._fs.protocol
        names = set([protocols] if isinstance(protocols, str) else protocols)
        self._with_folders = bool(WITH_FOLDERS & names)
        self._is_local = "file" in names

    def sizes(self) -> dict[str, dict[str, int]]:
        """Return the size in bytes of each file in each folder, by their names."""
        found: dict[str, dict[str, int]] = {}
        with self._errors("list"):
            self._fs.invalidate_cache()
            root = self._fs._strip_protocol(self._root).rstrip("/") + "/"
            for path, info in self._fs.find(self._root, maxdepth=2, detail=True).items():
                folder, _, name = str(path).removeprefix(root).partition("/")
                if name:
                    found.setdefault(folder, {})[name] = int(info.get("size") or 0)
        return found

    def read(self, name: str, limit: int = MAX_JSON_BYTES) -> bytes | None:
        """Read a small file of at most ``limit`` bytes. Return None if it does not exist."""
        try:
            return b"".join(self._blocks(name, limit))
        except Missing:
            return None

    def write(self, name: str, data: bytes) -> None:
        with self._errors("write", name):
            self._make_folder(name)
            self._fs.pipe_file(self._at(name), data)

    def put(self, local: Path, name: str, moved: Moved) -> None:
        """Send a file, and call ``moved`` with the number of bytes from time to time."""
        from fsspec.callbacks import Callback

        callback = Callback()
        callback.relative_update = lambda inc=1: moved(inc)
        with self._errors("write", name):
            self._make_folder(name)
            self._fs.put_file(os.fspath(local), self._at(name), callback=callback)

    def get(self, name: str, local: Path, limit: int) -> None:
        """Copy at most ``limit`` bytes of a file to a new local file, and flush it to disk.

        Raises OSError if the local file can't be written.
        """
        with os.fdopen(os.open(local, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666), "wb") as file:
            for block in self._blocks(name, limit):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        with self._errors("remove", name), contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._at(name))

    def remove_folder(self, name: str) -> None:
        with self._errors("remove", name), contextlib.suppress(FileNotFoundError):
            self._fs.rm(self._at(name), recursive=True)

    def _blocks(self, name: str, limit: int) -> Iterator[bytes]:
        left = limit
        with self._errors("read", name), self._opened(name) as file:
            while block := file.read(min(BLOCK_BYTES, left + 1)):
                left -= len(block)
                if left < 0:
                    raise Unfit(errno.EFBIG, f"it is longer than {limit} bytes")
                yield block

    def _opened(self, name: str) -> contextlib.AbstractContextManager[Any]:
        if self._is_local:
            return reading_opened(Path(self._at(name)))
        self._fs.invalidate_cache()  # it may know the size of an earlier file of this name
        return cast(contextlib.AbstractContextManager[Any], self._fs.open(self._at(name), "rb"))

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _make_folder(self, name: str) -> None:
        for place in (os.path.dirname(name), name) if self._is_local else ():
            if place and os.path.islink(self._at(place)):  # it may lead to any file
                os.unlink(self._at(place))
        if self._with_folders:
            self._fs.makedirs(os.path.dirname(self._at(name)), exist_ok=True)

    @contextlib.contextmanager
    def _errors(self, verb: str, name: str = "") -> Iterator[None]:
        try:
            yield
        except Unfit as error:
            raise CheckpointError(f"{self.url}/{name}: {error.strerror}") from None
        except Exception as error:
            kind = Missing if isinstance(error, FileNotFoundError) else StoreError
            what = f"{self.url}/{name}" if name else self.url
            raise kind(shown(f"{verb} {what}: {type(error).__name__}: {error}")[:500]) from error


EXTRA = 'pip install "torchbus-checkpoint[remote]"'
COLLAPSED = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/[^/]")


def is_url(place: object) -> bool:
    """Whether a place is a URL such as ``s3://bucket/run``. Raises UsageError for ``Path(url)``."""
    if isinstance(place, os.PathLike) and COLLAPSED.match(os.fspath(place)):
        raise UsageError(
            f"{place!r} was a URL: pass it as a string, because Path turns :// into :/"
        )
    return isinstance(place, str) and "://" in place


def shown(url: str) -> str:
    """Return the URL without its password."""
    return re.sub(r"(://[^/@:]*):[^/@]*@", r"\1:***@", url)


def local_folder(url: str) -> Path:
    """Return ``checkpoints/s3/bucket/run`` for ``s3://bucket/run``, in the working directory."""
    parts = re.split(r"[/\\]+|:+/*", re.sub(r"://[^/@]*@", "://", url).partition("?")[0])
    return Path(
        "checkpoints",
        *(re.sub(r"[^0-9A-Za-z_.-]+", "_", word) for word in parts if word.strip(".")),
    )


def refuse_unknown(url: str) -> None:
    """Raise UsageError if a package is missing, or if fsspec does not know such URLs.

    This starts no thread, because the session may fork later.
    """
    try:
        from fsspec import get_filesystem_class
    except ImportError:
        raise UsageError(f"checkpoint={shown(url)!r} needs fsspec: {EXTRA}") from None
    for part in url.split("::"):
        try:
            get_filesystem_class(part.partition("://")[0])
        except ImportError as error:
            raise UsageError(
                f"checkpoint={shown(url)!r} needs a package that is not installed: {EXTRA}"
                f" ({error})"
            ) from None
        except ValueError as error:
            raise UsageError(f"checkpoint={shown(url)!r}: {error}") from None


def file_system(url: str) -> tuple[Any, str]:
    """Return fsspec's file system, and the path in it.

    Some file systems connect here. Raises CheckpointError if that fails.
    """
    from fsspec.core import url_to_fs

    try:
        found, path = url_to_fs(url)
    except Exception as error:  # each file system has its own errors
        what = f"{type(error).__name__}: {error}"
        raise CheckpointError(f"checkpoint={shown(url)!r} can't be opened: {what}") from None
    return found, str(path).rstrip("/")
