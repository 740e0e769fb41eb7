"""What rank 0 has answered, on every rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchbus.plugin import Context


def of_rank0(session: Context, ask: Callable[[], Any]) -> Any:
    """What ``ask`` returns on rank 0, which is the only one to call it; its exception on all ranks. All ranks call it alike."""
    value, error = None, None
    if session.is_main:
        try:
            value = ask()
        except Exception as raised:
            error = raised
    value, told = session.all_gather_object((value, error))[0]
    if error is not None or told is not None:
        raise error or told
    return value
