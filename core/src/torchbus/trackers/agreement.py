"""A text that all ranks use."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchbus._session.context import Context


def chosen_by_rank0(session: Context, key: str, choose: Callable[[], str]) -> str:
    """What rank 0 chooses, on every rank; by the store, so that no collective is needed. All ranks call it."""
    if session.world_size == 1:
        return choose()
    store = session.world.shared
    if session.is_main:
        store.set(key, choose())
    return str(store.get(key).decode())
