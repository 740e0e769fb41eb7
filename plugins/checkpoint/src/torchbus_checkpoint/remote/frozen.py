"""A checkpoint that does not change while it is sent.

Meanwhile the loop goes on: ``keep`` may remove the checkpoint, or it may be written again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from torchbus_checkpoint.disk.folder import MANIFEST
from torchbus_checkpoint.disk.leftovers import SENDING


@contextlib.contextmanager
def frozen(one: Path) -> Iterator[Path]:
    """Yield a hidden folder with links to its files, which need no room.

    Raises FileNotFoundError if the checkpoint is removed or replaced meanwhile.
    """
    copy = one.with_name(f".{one.name}{SENDING}")
    shutil.rmtree(copy, ignore_errors=True)
    try:
        os.makedirs(copy)
        before = (one / MANIFEST).read_bytes()
        for name in os.listdir(one):
            if stat.S_ISREG(os.lstat(one / name).st_mode):  # a link may lead to any file
                _link(one / name, copy / name)
        if (one / MANIFEST).read_bytes() != before or not (copy / MANIFEST).exists():
            raise FileNotFoundError(one)
        yield copy
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without links
        shutil.copyfile(source, target)
