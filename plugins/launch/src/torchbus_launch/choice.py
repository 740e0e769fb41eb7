"""Chooses ``launch="fork"`` or ``"script"`` from the state of this process."""

from __future__ import annotations

import contextlib
import dataclasses
import linecache
import os
import re
import stat
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator

import torch
from torchbus.errors import UsageError

from torchbus_device import accelerators
from torchbus_device.devices import threads_per_rank
from torchbus_launch import relaunch
from torchbus_launch.request import LaunchRequest
from torchbus_launch.threads import native

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


def write_to_no_file_of_the_parent() -> None:
    """In the new process, discard writes to the parent's open files.

    So a log that was opened before the fork has each line once. This applies only to regular files
    that were opened only for writing, because others may also be read.
    """
    discard_writes(files_open_for_writing())


def discard_writes(descriptors: Iterable[int]) -> None:
    """Connect descriptors with the null device."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in descriptors:
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def files_open_for_writing() -> Iterator[int]:
    """Yield the descriptors of regular files that are open for writing alone."""
    for descriptor in map(
        int, os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else range(3, 256)
    ):
        with contextlib.suppress(OSError):
            writes = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
            if descriptor > 2 and writes and stat.S_ISREG(os.fstat(descriptor).st_mode):
                yield descriptor


USES = r"\.{0}\(|[\"']{0}|torch\.{0}\.(?!is_|device_count)"
COUNTS = r"torch\.{0}\.is_available|torch\.accelerator\.is_available"


def is_lost_in_a_fork(kind: str) -> bool:
    """Return whether a forked rank could not use devices of this kind.

    It could not once this process has initialised them, or once ``torch.cuda.is_available()`` has
    counted the GPUs through the driver. torch reports the latter only in a forked process, so this
    function forks a process and asks there.
    """
    kinds = {"cuda", accelerators.built_in() or "cuda"} if kind == "cpu" else {kind}
    if any(map(accelerators.is_initialized, kinds - {*accelerators.ONE_DEVICE})):
        return True
    is_in_bad_fork = None if kind == "cpu" else accelerators.is_in_bad_fork(kind)
    if is_in_bad_fork is None or not hasattr(os, "fork"):
        return False
    pid = fork()
    if pid == 0:
        os._exit(int(is_in_bad_fork()))
    return bool(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def count_devices_for_backward() -> None:
    """Run a small backward now if there are no GPUs, since torch counts them at the first backward.

    Once it has traced a model on a machine without GPUs, a torch that is built for GPUs reports
    eight. A first backward after that would start threads for them, and the next block could not
    fork.
    """
    if accelerators.current() is None:
        with torch.enable_grad():
            root = torch.ones((), requires_grad=True)
            torch.autograd.grad(root * 1, root)


def first_use(kind: str) -> str:
    """Quote the first line that uses devices of this kind, with its place; "" if none is found."""
    for pattern in (USES, COUNTS):
        for place, line in _lines_run():
            if re.search(pattern.format(kind), line.partition("#")[0]):
                return f"; the first line that uses it is {place}: {line.strip()}"
    return ""


def _lines_run() -> Iterator[tuple[str, str]]:
    """Yield the lines of the notebook's cells, or those of the main script, with their places."""
    main = vars(sys.modules["__main__"])
    cells = main.get("In") if "get_ipython" in main else None
    if isinstance(cells, list):
        for number, cell in enumerate(cells):
            yield from (
                (f"cell {number}, line {index}", line)
                for index, line in enumerate(str(cell).splitlines(), start=1)
            )
        return
    file = main.get("__file__") or ""
    yield from (
        (f"line {index}", line) for index, line in enumerate(linecache.getlines(file), start=1)
    )


SAFE = "launch='auto' chose fork: nothing in this process prevents it"
NO_SCRIPT = "launch='auto' chose fork: there is no script to run again"


def resolve(request: LaunchRequest) -> LaunchRequest:
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


def obstacle(request: LaunchRequest) -> str:
    """Return why a fork would be unsafe or slow; "" if nothing prevents it."""
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
    """Yield the names of Python's threads, and of library threads that set a name.

    The threads of OpenMP and BLAS pools set no name.
    """
    yield from (
        thread.name for thread in threading.enumerate() if thread is not threading.main_thread()
    )
    names = [name for _, name, _ in native()]  # the first name is the main thread's
    yield from (name for name in names if name != names[0])
