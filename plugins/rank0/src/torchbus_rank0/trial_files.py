"""The files of a trial run (``fast_dev_run``), beside those of real runs."""

from __future__ import annotations

import builtins
import functools
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torchbus.plugin import Context, hookimpl

from torchbus_rank0.whole_files import everywhere, imported

if TYPE_CHECKING:
    from torchbus.patches.active import Replacement

BESIDE = ".fast_dev_run"
MOVING = {os: ("rename", "replace"), shutil: ("copy", "copy2", "copyfile", "move")}
READING = {os: ("stat", "remove", "unlink"), builtins: ("open",), torch: ("load",)}


class TrialFiles:
    """Saves and loads a trial's files beside those of real runs, which stay unchanged.

    A copy of such a file, and its new name, are beside real files too.
    """

    def __init__(self, session: Context) -> None:
        self._session = session
        self._saved: set[str] = set()
        by_name: dict[object, Callable[[Any], object]] = {}
        replacements: list[Replacement] = []
        for table, make in ((MOVING, self._moves), (READING, self._reads)):
            for module, names in table.items():
                for name in names:
                    original = getattr(module, name)
                    by_name[original] = functools.cache(make)
                    replacements += everywhere(module, name, by_name[original])
        session.seams.replace([*imported(by_name), *replacements], session.on_close)
        session.on_close.callback(self._remove)

    @hookimpl(tryfirst=True)
    def save_file(self, path: str, write: Callable[[str], None]) -> bool | None:
        if path.endswith(BESIDE):
            return None
        beside = self._begin(path)
        if self._session.bus.hook.save_file(path=beside, write=write) is None:
            write(beside)
        return True

    def _begin(self, path: str) -> str:
        """Note that the trial has a file at ``path``. Return where it is."""
        real = os.path.realpath(path)
        self._saved.add(real)
        if self._session.world_size > 1:
            self._session.world.shared.set(_key(real), "")
        return f"{path}{BESIDE}"

    def _reads(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def read(*args: Any, **kwargs: Any) -> Any:
            if args and self._has(args[0]):
                args = (f"{os.fspath(args[0])}{BESIDE}", *args[1:])
            return original(*args, **kwargs)

        return read

    def _moves(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def move(*args: Any, **kwargs: Any) -> Any:
            if len(args) > 1 and self._has(args[0]):
                source, target = map(os.fspath, args[:2])
                if os.path.isdir(target):
                    target = os.path.join(target, os.path.basename(source))
                args = (f"{source}{BESIDE}", self._begin(target), *args[2:])
            return original(*args, **kwargs)

        return move

    def _has(self, path: Any) -> bool:
        """Return whether a rank has saved ``path`` in this trial."""
        if not isinstance(path, str | os.PathLike):
            return False
        real = os.path.realpath(path)
        if real in self._saved or self._session.world_size == 1:
            return real in self._saved
        return os.path.lexists(real + BESIDE) and self._session.world.shared.check([_key(real)])

    def _remove(self) -> None:
        for path in self._saved:
            with suppress(OSError):
                os.unlink(path + BESIDE)


def _key(path: str) -> str:
    return f"rank0/trial/{path}"
