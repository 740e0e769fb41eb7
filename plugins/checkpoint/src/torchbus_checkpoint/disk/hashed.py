"""Hash a file while it is written."""

from __future__ import annotations

import hashlib
import io
from typing import IO, Any


class HashedFile(io.RawIOBase):
    """A file that counts and hashes the bytes that are written to it, in order."""

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
