"""Rank 0's answer, on every rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from torchbus.plugin import Context

T = TypeVar("T")


def of_rank0(session: Context, ask: Callable[[], T]) -> T:
    """What ``ask`` returns, or raises, on rank 0, which is the only rank to call it.

    All ranks call ``of_rank0``.
    """
    value: T | None = None
    error: Exception | None = None
    if session.is_main:
        try:
            value = ask()
        except Exception as raised:
            error = raised
    value, told = session.all_gather_object((value, error))[0]
    if error is not None or told is not None:
        raise error or told
    return cast(T, value)
