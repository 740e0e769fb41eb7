"""Checks whether a forked process could use the devices, and finds the line that prevents it."""

from __future__ import annotations

import linecache
import os
import re
import sys
from collections.abc import Iterator

import torch

from torchbus._compat import accelerators
from torchbus._launch.start.forking import fork, names_of_tasks

USES = r"\.{0}\(|[\"']{0}|torch\.{0}\.(?!is_|device_count)"
BACKWARD_THREAD = "pt_autograd_"
COUNTS = r"torch\.{0}\.is_available|torch\.accelerator\.is_available"


def is_lost_in_a_fork(kind: str) -> bool:
    """Return whether a forked rank could not use devices of this kind.

    That is so once this process has initialised them, or once ``torch.cuda.is_available()`` has
    counted the GPUs through the driver. torch reports the latter only in a forked process, so this
    function forks one and asks there.
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


def has_backward_threads() -> bool:
    """Return whether a backward, of whatever device, has started torch's thread for each GPU.

    Then backward raises in a forked process. torch has no other sign of it.
    """
    return any(name.startswith(BACKWARD_THREAD) for name in names_of_tasks())


def count_devices_for_backward() -> None:
    """Let backward count the GPUs now, if there are none. It does so once, at its first call.

    A build for GPUs believes in eight once it has traced a model on a machine without any. A
    backward after that would start threads for them, and the next block could not fork.
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
