"""Makes ``torch.save`` of all ranks to one path write one file, atomically."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from torchbus._bus.markers import hookimpl
from torchbus._files import temporaries
from torchbus._files.paths import is_special
from torchbus._session.notices import warn

if TYPE_CHECKING:
    from torchbus._ranks.world import SharedStore
    from torchbus._session.context import Context

WAIT_FOR_RANK0_S = 20.0


class WriteOnce:
    """Lets rank 0 write a file for all ranks.

    Rank 0 writes to a temporary file and renames it. The others wait for at most 20 s and write
    nothing. There is no collective, because a save may be conditional: ranks count their saves of
    each path in the store. Rank 0 may have saved a file of that name in another folder at this
    point of the loop (folders named by the clock). Then a rank need not wait, and writes its own.
    """

    def __init__(self, session: Context) -> None:
        assert session.job is not None
        self._session = session
        self._job = session.job
        self._saves: Counter[str] = Counter()
        self._swept: set[str] = set()

    @hookimpl
    def save_file(self, path: str, write: Callable[[str], None]) -> bool:
        keys = (
            f"save/{os.path.abspath(path)}",
            f"save at backward {self._job.backwards}/{os.path.basename(path)}",
        )
        self._saves.update(keys)
        if self._session.is_main:
            self._save_for_all(path, write, keys)
        elif not self._has_saved(keys):
            if not self._has_failed(keys):
                warn(
                    f"rank 0 did not save {path}, so rank {self._session.rank} writes its own: if"
                    " the clock names the folder, use rank 0's name,"
                    " s.all_gather_object(name)[0]; if the save depends on the rank, give each"
                    " rank a path of its own"
                )
            self._write(path, write)
        return True

    def _save_for_all(self, path: str, write: Callable[[str], None], keys: tuple[str, str]) -> None:
        """Write for all ranks, and publish a failure.

        The others then try by themselves immediately, so that each raises the error, too.
        """
        shared = self._session.world.shared
        try:
            self._write(path, write)
        except BaseException:
            shared.set(self._failure(keys), "")
            raise
        finally:
            for key in keys:
                shared.add(key, 1)

    def _write(self, path: str, write: Callable[[str], None]) -> None:
        """Write a file; before the first save in a folder, remove what a killed run left there."""
        folder = os.path.dirname(os.path.realpath(path))
        if folder not in self._swept:
            self._swept.add(folder)
            temporaries.sweep(folder)
        write_whole(path, write)

    def _failure(self, keys: tuple[str, str]) -> str:
        return f"failed {self._saves[keys[0]]} {keys[0]}"

    def _has_failed(self, keys: tuple[str, str]) -> bool:
        return bool(self._session.world.shared.check([self._failure(keys)]))

    def _has_saved(self, keys: tuple[str, str]) -> bool:
        """Wait, and return whether rank 0 has written this path as often as this rank tried to."""

        def count(store: SharedStore, key: str) -> bool:
            return int(store.add(key, 0)) >= self._saves[key]

        self._job.wait_until(lambda store: any(count(store, key) for key in keys), WAIT_FOR_RANK0_S)
        return count(self._session.world.shared, keys[0]) and not self._has_failed(keys)


def write_whole(path: str, write: Callable[[str], None]) -> None:
    """Write next to the path and rename: a reader sees the old file or the whole new one."""
    if is_special(path):
        return write(path)
    folder, name = os.path.split(os.path.realpath(path))
    try:
        descriptor, temporary = temporaries.make(folder, name)
    # The folder is missing, or it allows writing files but not creating them. The loop then gets
    # torch's own error, if any.
    except OSError:
        return write(path)
    try:
        write(temporary)
        os.chmod(temporary, _mode(path))
        os.replace(temporary, os.path.realpath(path))
    except BaseException:
        os.unlink(temporary)
        raise
    finally:
        os.close(descriptor)


def _mode(path: str) -> int:
    with contextlib.suppress(FileNotFoundError):
        return os.stat(path).st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
