"""A folder at a URL, through fsspec. Each of its errors becomes a StoreError."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from torchbus_checkpoint.remote.url import file_system, shown

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
"""File systems in which a file needs its folder first.

A bucket has no folders, and ``makedirs`` might create a bucket.
"""
Moved = Callable[[int], None]


class StoreError(Exception):
    """An error of the store, its library or the network."""


class Missing(StoreError):
    """There is no such file."""


class Store:
    """Reads and writes files. Names are relative to the URL."""

    def __init__(self, url: str) -> None:
        self.url = shown(url)
        self._fs, self._root = file_system(url)
        protocols = self._fs.protocol
        self._with_folders = bool(
            WITH_FOLDERS & set([protocols] if isinstance(protocols, str) else protocols)
        )

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

    def read(self, name: str) -> bytes | None:
        """Read a small file. Return None if there is none."""
        with self._errors("read", name):
            try:
                return bytes(self._fs.cat_file(self._at(name)))
            except FileNotFoundError:
                return None

    def write(self, name: str, data: bytes) -> None:
        with self._errors("write", name):
            self._make_folder(name)
            self._fs.pipe_file(self._at(name), data)

    def put(self, local: Path, name: str, moved: Moved) -> None:
        """Send a file, and call ``moved`` with the number of bytes now and then."""
        from fsspec.callbacks import Callback

        callback = Callback()
        callback.relative_update = lambda inc=1: moved(inc)
        with self._errors("write", name):
            self._make_folder(name)
            self._fs.put_file(os.fspath(local), self._at(name), callback=callback)

    def get(self, name: str, local: Path) -> None:
        """Copy to a new file, and flush it. Raises OSError if the file can't be written."""
        with os.fdopen(os.open(local, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666), "wb") as file:
            for block in self._blocks(name):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())

    def remove(self, name: str) -> None:
        """Remove a file."""
        with self._errors("remove", name), contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._at(name))

    def remove_folder(self, name: str) -> None:
        with self._errors("remove", name), contextlib.suppress(FileNotFoundError):
            self._fs.rm(self._at(name), recursive=True)

    def _blocks(self, name: str) -> Iterator[bytes]:
        with self._errors("read", name):
            file = self._fs.open(self._at(name), "rb")
        with file:
            while True:
                with self._errors("read", name):
                    block = file.read(BLOCK_BYTES)
                if not block:
                    return
                yield block

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _make_folder(self, name: str) -> None:
        if self._with_folders:
            self._fs.makedirs(os.path.dirname(self._at(name)), exist_ok=True)

    @contextlib.contextmanager
    def _errors(self, verb: str, name: str = "") -> Iterator[None]:
        try:
            yield
        except Exception as error:
            kind = Missing if isinstance(error, FileNotFoundError) else StoreError
            what = f"{self.url}/{name}" if name else self.url
            raise kind(shown(f"{verb} {what}: {type(error).__name__}: {error}")[:500]) from error
