"""Lets all ranks use a text that rank 0 chooses, such as the name of a run."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchbus._session.context import Context


def new_run_name() -> str:
    """Return "YYYYMMDD-HHMMSS-xxxx", in local time. For ``chosen_by_rank0``."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def chosen_by_rank0(session: Context, key: str, choose: Callable[[], str]) -> str:
    """Return, on every rank, what rank 0 chooses.

    All ranks must call it. It uses the store, so it needs no collective.
    """
    if session.world_size == 1:
        return choose()
    store = session.world.shared
    if session.is_main:
        store.set(key, choose())
    return str(store.get(key).decode())
