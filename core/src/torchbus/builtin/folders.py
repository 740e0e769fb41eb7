"""``if not os.path.isdir(d): os.mkdir(d)`` on several ranks at once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torchbus.events import hookimpl

if TYPE_CHECKING:
    from torchbus.session import Session


class SharedFolders:
    """A folder that another rank has made in this session counts as made by this one."""

    def __init__(self) -> None:
        self._made: set[str] = set()

    @hookimpl
    def session_start(self, session: Session) -> None:
        begun_s = time.time()

        def make(original: Callable[..., None]) -> Callable[..., None]:
            def mkdir(path: Any, *args: Any, **kwargs: Any) -> None:
                name = os.path.abspath(os.fsdecode(os.fspath(path)))
                try:
                    original(path, *args, **kwargs)
                except FileExistsError:
                    if name in self._made or not os.path.isdir(name) or os.stat(name).st_ctime < begun_s - 1.0:
                        raise
                self._made.add(name)

            return mkdir

        session.replace(os, "mkdir", make)
