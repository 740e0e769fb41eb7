"""Lets several ranks create and remove the same folders.

It makes ``if not os.path.isdir(d): os.mkdir(d)`` and ``shutil.rmtree(d)`` safe on all ranks.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from torchbus._bus.markers import hookimpl
from torchbus._files.paths import absolute, is_private, replace_everywhere
from torchbus._session.notices import warn

if TYPE_CHECKING:
    from torchbus._session.context import Context

WAIT_FOR_RANK0_S = 20.0


class SharedFolders:
    """Treats a folder that another rank created in this session as created by this rank.

    Rank 0 removes a tree. The others wait for at most 20 s, so that they cannot delete what rank 0
    has written there since. A rank removes a folder that it created and rank 0 did not.
    """

    def __init__(self, session: Context) -> None:
        assert session.job is not None
        self._session = session
        self._job = session.job
        self._pid = os.getpid()
        self._begun_s = time.time()
        self._made: set[str] = set()
        self._made_first: set[str] = set()
        self._removals: Counter[str] = Counter()

    @hookimpl
    def session_start(self, session: Context) -> None:
        replace_everywhere(session, os, "mkdir", self._make)
        session.replace(shutil, "rmtree", self._remove)

    def _make(self, original: Callable[..., None]) -> Callable[..., None]:
        def mkdir(path: object, *args: object, **kwargs: object) -> None:
            name = absolute(path)
            if self._is_shared(name) and self._session.is_main:
                self._session.world.shared.set(f"made/{name}", "")
            try:
                original(path, *args, **kwargs)
                self._made_first.add(name)
            except FileExistsError:
                if (
                    name in self._made
                    or not os.path.isdir(name)
                    or os.stat(name).st_ctime < self._begun_s - 1.0
                ):
                    raise
            self._made.add(name)

        return mkdir

    def _remove(self, original: Callable[..., None]) -> Callable[..., None]:
        def rmtree(path: object, *args: object, **kwargs: object) -> None:
            name = absolute(path)
            self._forget(name)
            if not self._is_shared(name) or kwargs.get("dir_fd") is not None:
                return original(path, *args, **kwargs)
            if self._session.is_main:
                try:
                    return original(path, *args, **kwargs)
                finally:
                    self._session.world.shared.add(f"removed tree/{name}", 1)
            if self._is_this_ranks(name) or not self._rank0_removes(name):
                original(path, *args, **kwargs)

        return rmtree

    def _forget(self, tree: str) -> None:
        """Forget the folders of a tree, so that they may be created again."""
        for made in (self._made, self._made_first):
            made -= {name for name in made if name.startswith(tree + os.sep)}
        self._made.discard(tree)

    def _is_shared(self, name: str) -> bool:
        return (
            bool(name)
            and os.getpid() == self._pid
            and self._session.world.store is not None
            and not is_private(name)
        )

    def _is_this_ranks(self, name: str) -> bool:
        return name in self._made_first and not self._session.world.shared.check([f"made/{name}"])

    def _rank0_removes(self, name: str) -> bool:
        """Wait until rank 0 has removed this tree as often as this rank tried to."""
        self._removals[name] += 1
        if self._job.wait_until(
            lambda store: int(store.add(f"removed tree/{name}", 0)) >= self._removals[name],
            WAIT_FOR_RANK0_S,
        ):
            return True
        warn(
            f"rank 0 did not remove {name}, so rank {self._session.rank} does: if that depends on"
            " the rank, give each rank a folder of its own"
        )
        return False
