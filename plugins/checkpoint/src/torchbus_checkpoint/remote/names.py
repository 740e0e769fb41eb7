"""Checkpoints in a store: folders, each with a manifest that is written last. What is there is never written over.

A step that is written a second time gets a folder of its own, ``step-00000120.2``; the one before goes when it is whole.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from torchbus_checkpoint.disk.folder import MANIFEST
from torchbus_checkpoint.remote.store import Store

NAME = re.compile(r"(step-(\d+))(?:\.(\d+))?")


@dataclass(frozen=True, order=True)
class There:
    """``local`` is its name in a local folder."""

    step: int
    revision: int
    name: str
    local: str
    is_whole: bool


def there(store: Store) -> list[There]:
    """Whole ones and begun ones, oldest first. Raises StoreError."""
    found = []
    for name, files in store.sizes().items():
        known = NAME.fullmatch(name)
        if known:
            found.append(There(int(known[2]), int(known[3] or 1), name, known[1], MANIFEST in files))
    return sorted(found)


def free(local: str, known: list[There]) -> str:
    """The name for what is to be written: that of one that was begun, else a new one."""
    alike = [one for one in known if one.local == local]
    begun = next((one.name for one in alike if not one.is_whole), None)
    last = max((one.revision for one in alike), default=0)
    return begun or (local if not last else f"{local}.{last + 1}")


def superseded(known: list[There]) -> Iterator[There]:
    """Earlier ones of a step that is there again, and begun ones of which a later one is whole."""
    for index, one in enumerate(known):
        if any(later.is_whole and (later.local == one.local or not one.is_whole) for later in known[index + 1 :]):
            yield one


def remove(store: Store, one: There) -> None:
    """Its manifest first, so that no half of one is ever seen. Raises StoreError."""
    store.remove(f"{one.name}/{MANIFEST}")
    store.remove_folder(one.name)


def digest(data: bytes | None) -> str:
    """Of a manifest: two checkpoints are the same where it is."""
    return hashlib.sha256(data or b"").hexdigest()
