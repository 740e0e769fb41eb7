"""Searching the largest batch size that fits on all ranks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torchbus.plugin import Context, UsageError

Function = Callable[[int], object]
OUT_OF_MEMORY = "CUDA out of memory."  # what accelerate takes for a reason to go on with less


def search(
    function: Function,
    start: int,
    session: Context,
    unsynchronised: Callable[[], AbstractContextManager[object]],
) -> int:
    """accelerate's find_executable_batch_size, which tries less if any rank runs out of memory."""
    try:
        from accelerate.utils.memory import find_executable_batch_size, should_reduce_batch_size
    except ImportError:
        raise UsageError(
            "find_batch_size needs accelerate: pip install torchbus-scale[search]"
        ) from None
    _check(function, start)

    def attempt(batch_size: int) -> int:
        error: BaseException | None = None
        try:
            with unsynchronised():
                function(batch_size)
        except Exception as raised:
            if not (isinstance(raised, torch.OutOfMemoryError) or should_reduce_batch_size(raised)):
                raise
            error = raised
        if float(session.reduce(float(error is not None), "max")):
            raise RuntimeError(OUT_OF_MEMORY) from error
        return batch_size

    return int(find_executable_batch_size(attempt, starting_batch_size=start)())


def _check(function: object, start: object) -> None:
    if not callable(function):
        raise UsageError(
            f"find_batch_size({function!r}): pass a function of the batch size that makes a forward"
            " and a backward"
        )
    if isinstance(start, bool) or not isinstance(start, int) or start < 1:
        raise UsageError(
            f"find_batch_size(start={start!r}): it must be a number of samples, at least 1"
        )
