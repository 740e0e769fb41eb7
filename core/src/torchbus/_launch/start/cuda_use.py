"""Whether a forked process could use CUDA, and who has made it unfit, as far as the code that was run tells."""

from __future__ import annotations

import linecache
import os
import re
import sys
from collections.abc import Iterator

import torch

from torchbus._launch.start.forking import fork

USES = re.compile(r"\.cuda\(|[\"']cuda|torch\.cuda\.(?!is_|device_count)")
COUNTS = re.compile(r"torch\.cuda\.is_available")


def is_lost_in_a_fork(kind: str) -> bool:
    """Whether ranks on devices of this kind can't be forked any more: CUDA is initialised, or ``torch.cuda.is_available()`` has counted
    the GPUs by the driver. torch tells the latter only in a forked process, so one is asked."""
    if torch.cuda.is_initialized():
        return True
    if kind != "cuda":
        return False
    refused = getattr(torch._C, "_cuda_isInBadFork", None)  # no CUDA in this build without it
    if refused is None or not hasattr(os, "fork"):
        return False
    pid = fork()
    if pid == 0:
        os._exit(int(refused()))
    return bool(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def first_use() -> str:
    """The first line that uses CUDA, quoted with its place; "" where none is found."""
    for pattern in (USES, COUNTS):
        for place, line in _lines_run():
            if pattern.search(line.partition("#")[0]):
                return f"; the first line that uses it is {place}: {line.strip()}"
    return ""


def _lines_run() -> Iterator[tuple[str, str]]:
    """Lines of the cells of a notebook, or else of the main script."""
    main = vars(sys.modules["__main__"])
    cells = main.get("In") if "get_ipython" in main else None
    if isinstance(cells, list):
        for number, cell in enumerate(cells):
            yield from ((f"cell {number}, line {index}", line) for index, line in enumerate(str(cell).splitlines(), start=1))
        return
    file = main.get("__file__") or ""
    yield from ((f"line {index}", line) for index, line in enumerate(linecache.getlines(file), start=1))
