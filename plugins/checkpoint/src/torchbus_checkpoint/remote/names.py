"""The names of checkpoints in a store: folders, each with a manifest that is written last.

Nothing is overwritten. A step that is written a second time gets a folder of its own,
``step-00000120.2``. The first one is removed when the second is whole.
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
    """A checkpoint in a store. ``local`` is its name in a local folder."""

    step: int
    revision: int
    name: str
    local: str
    is_whole: bool


def there(store: Store) -> list[There]:
    """Return the checkpoints in a store, oldest first, also unfinished ones. Raises StoreError."""
    found = []
    for name, files in store.sizes().items():
        known = NAME.fullmatch(name)
        if known:
            found.append(
                There(int(known[2]), int(known[3] or 1), name, known[1], MANIFEST in files)
            )
    return sorted(found)


def free(local: str, known: list[There]) -> str:
    """Return the name to write to: that of an unfinished one, or a new one."""
    alike = [one for one in known if one.local == local]
    begun = next((one.name for one in alike if not one.is_whole), None)
    last = max((one.revision for one in alike), default=0)
    return begun or (local if not last else f"{local}.{last + 1}")


def superseded(known: list[There]) -> Iterator[There]:
    """Yield earlier ones of a step that is there again, and unfinished ones before a whole one."""
    for index, one in enumerate(known):
        if any(
            later.is_whole and (later.local == one.local or not one.is_whole)
            for later in known[index + 1 :]
        ):
            yield one


def remove(store: Store, one: There) -> None:
    """Remove a checkpoint. Its manifest goes first, so that nobody sees half of one."""
    store.remove(f"{one.name}/{MANIFEST}")
    store.remove_folder(one.name)


def digest(data: bytes | None) -> str:
    """Return the digest of a manifest. Two checkpoints with equal digests are the same."""
    return hashlib.sha256(data or b"").hexdigest()
