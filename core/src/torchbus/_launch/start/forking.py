"""What a fork leaves to the new process, and must not."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import warnings
from collections.abc import Iterator

if sys.platform != "win32":
    import fcntl


def fork() -> int:
    """``os.fork()``. What Python 3.12 warns of, locks of other threads, is looked after by those who call this."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()  # else what waits in its buffer is written by both
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def write_to_no_file_of_the_parent() -> None:
    """In the new process: what the parent's open files are written goes nowhere, so that a log which was opened before has each line once.

    Only regular files that were opened for nothing but writing: others may be read, too.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in _files_open_for_writing():
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _files_open_for_writing() -> Iterator[int]:
    for descriptor in map(int, os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else range(3, 256)):
        with contextlib.suppress(OSError):
            writes = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
            if descriptor > 2 and writes and stat.S_ISREG(os.fstat(descriptor).st_mode):
                yield descriptor
