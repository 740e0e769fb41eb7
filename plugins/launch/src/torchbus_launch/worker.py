"""Detaches a process that the loop forks from the job's connections."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from types import FrameType

from torchbus.compat.python import current_frame
from torchbus.errors import UsageError

from torchbus_launch.broadcast_log import ports_of, sockets_opened
from torchbus_launch.rank_position import DATA

PR_SET_PDEATHSIG = 1
_of_rank: int | None = None


def detach(rank: int, rank_pid: int, thread: int, port: int) -> None:
    """Detach this process, which the ``thread`` of a rank has just forked, from its job.

    ``port`` is the port of the job's store.
    """
    global _of_rank
    _of_rank = rank
    end_with_rank(rank_pid, thread)
    close_connections(port)


def refuse_ranks() -> None:
    """Raise UsageError in a process that a rank has forked: torch's process group is inherited.

    Its connections are those of the rank, so every collective would wait forever.
    """
    if _of_rank is not None:
        raise UsageError(
            f"this process was forked by rank {_of_rank}, and can't start ranks: end the block"
            " before it is forked, start it by subprocess, or use strategy=None in it"
        )


def close_connections(port: int) -> None:
    """Close the inherited connections to the store at a port, also those of its server.

    Otherwise, the other ranks would not notice that the rank has gone. The descriptors stay valid,
    because torch's objects, which this process has inherited too, will close them again.
    """
    none_found = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in sockets_opened():
        if port in ports_of(descriptor):
            os.dup2(none_found, descriptor, inheritable=False)
    os.close(none_found)


def end_with_rank(rank_pid: int, thread: int) -> None:
    """Let the kernel end this process with its rank if it is a DataLoader's worker.

    A worker in a slow read would outlive its rank. The kernel acts when the forking thread ends, so
    this does nothing for a worker that was forked by a thread other than the loop's ``thread``.
    """
    if sys.platform != "linux" or threading.get_ident() != thread or not _is_loaders_worker():
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != rank_pid:
        os._exit(1)  # the rank has gone already


def _is_loaders_worker() -> bool:
    frame: FrameType | None = current_frame(0)
    while frame is not None and frame.f_globals.get("__name__") != DATA:
        frame = frame.f_back
    return frame is not None
