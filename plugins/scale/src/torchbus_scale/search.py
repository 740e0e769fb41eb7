"""The largest batch size that fits, agreed over ranks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torchbus.plugin import Context, UsageError

Function = Callable[[int], Any]
OUT_OF_MEMORY = "CUDA out of memory."  # what accelerate takes for a reason to go on with less


def search(function: Function, start: int, session: Context, alone: Callable[[], AbstractContextManager[Any]]) -> int:
    """accelerate's find_executable_batch_size, which tries less where any rank has run out of memory."""
    try:
        from accelerate.utils.memory import find_executable_batch_size, should_reduce_batch_size
    except ImportError:
        raise UsageError("find_batch_size needs accelerate: pip install torchbus-scale[search]") from None
    if not callable(function):
        raise UsageError(f"find_batch_size({function!r}): pass a function of the batch size, that makes a forward and a backward")
    if isinstance(start, bool) or not isinstance(start, int) or start < 1:
        raise UsageError(f"find_batch_size(start={start!r}): it must be a number of samples, at least 1")

    def attempt(batch_size: int) -> int:
        error: BaseException | None = None
        try:
            with alone():
                function(batch_size)
        except Exception as raised:
            if not should_reduce_batch_size(raised):
                raise
            error = raised
        if float(session.reduce(float(error is not None), "max")):
            raise RuntimeError(OUT_OF_MEMORY) from error
        return batch_size

    return int(find_executable_batch_size(attempt, starting_batch_size=start)())
