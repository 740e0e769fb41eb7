"""``launch="auto"`` forks if that is safe; otherwise it runs the script again."""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Iterator

from torchbus._compat import accelerators
from torchbus._launch.request import Request
from torchbus._launch.start import relaunch
from torchbus._launch.start.device_use import is_lost_in_a_fork
from torchbus._launch.start.forking import names_of_tasks
from torchbus._ranks.devices import threads_per_rank
from torchbus.errors import UsageError

SAFE = "launch='auto' chose fork: nothing in this process prevents it"
NO_SCRIPT = "launch='auto' chose fork: there is no script to run again"


def resolve(request: Request) -> Request:
    """Return the request with "fork" or "script" instead of "auto", and the rule that decided.

    A request with another ``launch`` is returned unchanged.
    """
    if request.launch != "auto":
        return request
    reason = obstacle(request)
    if not reason:
        return dataclasses.replace(request, launch="fork", launch_rule=SAFE)
    try:
        relaunch.command()
    except UsageError:
        return dataclasses.replace(request, launch="fork", launch_rule=NO_SCRIPT)
    return dataclasses.replace(
        request, launch="script", launch_rule=f"launch='auto' did not fork: {reason}"
    )


def obstacle(request: Request) -> str:
    """Say why a fork would be unsafe or slow; "" if nothing prevents it."""
    if sys.platform != "linux":
        return "a fork is safe on Linux only"
    if is_lost_in_a_fork(request.devices.kind):
        return f"{_name(request.devices.kind)} is initialised in this process"
    if threading.current_thread() is not threading.main_thread():
        return "the session does not begin in the main thread"
    thread = next(_threads_lost_in_a_fork(), "")
    if thread:
        return f"the thread {thread!r} would be missing in a forked rank"
    threads = threads_per_rank(request.devices.count)
    if request.devices.kind == "cpu" and request.devices.count > 1 and threads > 1:
        return f"each rank has {threads} CPU threads, and a forked one can use only one"
    return ""


def _name(kind: str) -> str:
    kind = kind if kind != "cpu" else accelerators.current() or "cuda"
    return "CUDA" if kind == "cuda" else kind


def _threads_lost_in_a_fork() -> Iterator[str]:
    """Yield the names of Python's threads, and of library threads that have a name of their own.

    The threads of OpenMP and BLAS pools have none.
    """
    yield from (
        thread.name for thread in threading.enumerate() if thread is not threading.main_thread()
    )
    names = list(names_of_tasks())  # the main thread's is the first
    yield from (name for name in names if name != names[0])
