"""Closes process groups, also those whose collectives were ended by force.

gloo loses a send that fails at the moment in which its peer asks for it: nobody wakes the thread
that waits for it (``Pair::handleRemotePendingRecv`` in gloo/transport/tcp/pair.cc, of torch 2.4 to
2.13). The group's destructor would wait for that thread, up to the group's timeout, and a traceback
that holds the group would run it at the very end of the process.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import torch.distributed as dist

from torchbus._compat.cpython import keep
from torchbus._compat.groups import engines_of_groups

WORKER = "pt_gloo_runloop"
"""torch's name for the threads that run gloo's collectives; older releases give them none."""

FUTEX = {"x86_64": "202", "aarch64": "98"}
"""The number of Linux's system call in which a thread waits for another one, by machine."""

USUALLY_WITHIN_S = 2.0


def close_groups() -> None:
    """Close all groups. If a collective does not end, the engines stay until the process ends.

    Otherwise they are freed last, by themselves: that is without the GIL. torch 2.4 frees a group
    with the GIL, and waits for its threads. One of these may want the GIL to free a tensor.
    """
    with contextlib.suppress(RuntimeError):
        if dist.is_initialized():
            engines = engines_of_groups()
            if not _come_to_rest():
                keep(engines)
            dist.destroy_process_group()


def _come_to_rest() -> bool:
    """Wait until no thread runs a collective any more. Returns whether that came about."""
    deadline = time.monotonic() + USUALLY_WITHIN_S
    while any(map(_is_in_a_collective, Path("/proc/self/task").glob("*"))):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _is_in_a_collective(thread: Path) -> bool:
    """Whether one of gloo's threads does anything but wait for work, which it does without a
    timeout. Where the system does not tell: no.
    """
    try:
        if (thread / "comm").read_text().strip() != WORKER:
            return False
        call = (thread / "syscall").read_text().split()
    except OSError:
        return False
    number = FUTEX.get(os.uname().machine)
    waits_for_work = len(call) > 4 and call[0] == number and int(call[4], 16) == 0
    return number is not None and not waits_for_work
