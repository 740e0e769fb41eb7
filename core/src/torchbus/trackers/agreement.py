"""Lets all ranks use a text that rank 0 chooses."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchbus._session.context import Context


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
