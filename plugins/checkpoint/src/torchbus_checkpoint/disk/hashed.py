"""Hash a file while it is written."""

from __future__ import annotations

import hashlib
from typing import IO, Any


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
