"""A real disk that a test can fill and free."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class SmallDisk:
    """A folder on a separate disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self) -> None:
        """Use up all free space."""
        with self._filler.open("ab", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while file.write(b"\0" * size):
                        pass
                except OSError:
                    continue

    def free(self) -> None:
        """Free the space again."""
        os.unlink(self._filler)


@contextmanager
def small_disk(path: Path, kib: int) -> Iterator[SmallDisk | None]:
    """Mount a tmpfs of so many KiB at ``path``, a new folder, and unmount it at the end.

    Yields None if this process may not mount one.
    """
    path.mkdir()
    mounted = (
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(path)], capture_output=True
        ).returncode
        == 0
    )
    try:
        yield SmallDisk(path) if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(path)], check=True)
