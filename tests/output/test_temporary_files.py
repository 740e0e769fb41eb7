"""The temporary file of a save is not taken for one that a killed run has left."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

from torchbus_rank0.whole_files import make


def test_a_file_that_another_process_sweeps_at_this_moment_is_not_used(
    tmp_path: Path, monkeypatch
) -> None:
    made, original = [], tempfile.mkstemp

    def mkstemp(**kwargs: str) -> tuple[int, str]:
        descriptor, path = original(**kwargs)
        made.append(path)
        if len(made) == 1:  # the other process has locked it, and not removed it yet
            other = os.open(path, os.O_RDONLY)
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor, path

    monkeypatch.setattr(tempfile, "mkstemp", mkstemp)
    descriptor, path = make(str(tmp_path), "model.pt")
    os.close(descriptor)
    assert path == made[1] != made[0]
