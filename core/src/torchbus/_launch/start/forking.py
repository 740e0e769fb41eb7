"""Forks without handing on what the new process must not inherit."""

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
    """Call ``os.fork()`` with flushed streams.

    Python 3.12 warns of locks that other threads hold; callers of this function handle those.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()  # otherwise both processes write the contents of its buffer
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def names_of_tasks() -> Iterator[str]:
    """Yield the names of this process's threads, native ones too; none without /proc."""
    with contextlib.suppress(OSError):
        for number in os.listdir("/proc/self/task"):
            path = f"/proc/self/task/{number}/comm"
            with open(path, encoding="utf-8", errors="replace") as file:
                yield file.read().strip()


def write_to_no_file_of_the_parent() -> None:
    """In the new process, discard writes to the parent's open files.

    So a log that was opened before the fork has each line once. This applies only to regular files
    that were opened only for writing, because others may also be read.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in _files_open_for_writing():
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _files_open_for_writing() -> Iterator[int]:
    for descriptor in map(
        int, os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else range(3, 256)
    ):
        with contextlib.suppress(OSError):
            writes = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
            if descriptor > 2 and writes and stat.S_ISREG(os.fstat(descriptor).st_mode):
                yield descriptor
