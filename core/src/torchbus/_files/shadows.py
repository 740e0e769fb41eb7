"""Keeps only rank 0's version of files that the script opens itself.

A script for one process writes its log, its table and its plots from every rank that runs it. On a
rank that the session started, ``open`` for writing opens a private copy instead (a shadow). So no
line appears twice, and no file mixes the output of several ranks. At the end, a rank copies its
shadows to files that rank 0 did not write (a path with the rank in it).
"""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from torchbus._bus.markers import hookimpl
from torchbus._files.paths import absolute, is_private, is_special, replace_everywhere

if TYPE_CHECKING:
    from torchbus._session.context import Context


class Shadows:
    """On rank 0, publishes which paths it writes. On the others, writes to shadows."""

    def __init__(self, session: Context) -> None:
        self._session = session
        self._pid = os.getpid()
        self._shadows: dict[str, str] = {}
        self._appended: set[str] = set()
        self._told: set[str] = set()
        self._folder = ""

    @hookimpl
    def session_start(self, session: Context) -> None:
        tempfile.gettempdir()  # its first call removes a file under a lock, so it comes first
        places = [(io, "open", self._open)] + [
            (os, name, self._remove) for name in ("remove", "unlink")
        ]
        places += [(os, name, self._move) for name in ("rename", "replace")]
        if not session.is_main:
            session.on_close.callback(self._remove_folder)
            session.on_close.callback(self._put_in_place)
            places += [(shutil, "rmtree", self._remove_tree)]
        session.replace(builtins, "open", self._open)  # undone before the callbacks above run
        for owner, name, make in places:
            replace_everywhere(session, owner, name, make)

    def _remove_folder(self) -> None:
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _put_in_place(self) -> None:
        """After all ranks have met, copy the shadows of files that rank 0 did not write."""
        with contextlib.suppress(RuntimeError):  # the store goes with rank 0
            self._put_own_in_place()

    def _put_own_in_place(self) -> None:
        for path, shadow in self._shadows.items():
            if self._session.world.shared.check([f"wrote/{path}"]) or not os.path.exists(shadow):
                continue
            if path in self._appended and os.path.exists(path):
                with open(path, "ab") as target:
                    target.write(Path(shadow).read_bytes())
            else:
                shutil.copyfile(shadow, path)

    def _open(self, original: Callable[..., object]) -> Callable[..., object]:
        def opened(file: object, mode: str = "r", *args: object, **kwargs: object) -> object:
            writes = any(letter in mode for letter in "wax+")
            path = self._path(file) if writes or self._shadows else None
            if path is None:
                return original(file, mode, *args, **kwargs)
            if self._session.is_main:
                if writes:
                    self._tell(path)
                return original(file, mode, *args, **kwargs)
            return original(
                self._shadow(path, mode) if writes else self._shadows.get(path, file),
                mode,
                *args,
                **kwargs,
            )

        return opened

    def _path(self, file: object) -> str | None:
        """Return the absolute path of a file that belongs to the script.

        None for devices, descriptors and caches.
        """
        if (
            isinstance(file, int | bytes)
            or os.getpid() != self._pid
            or self._session.world.store is None
            or not isinstance(file, str | os.PathLike)
        ):
            return None
        path = absolute(file)
        return None if not path or is_private(path) or is_special(path) else path

    def _tell(self, path: str) -> None:
        if path not in self._told:
            self._told.add(path)
            self._session.world.shared.set(f"wrote/{path}", "")

    def _shadow(self, path: str, mode: str) -> str:
        self._folder = self._folder or tempfile.mkdtemp(prefix="torchbus-")
        if path not in self._shadows:
            self._shadows[path] = shadow = os.path.join(
                self._folder, f"{len(self._shadows)}{os.path.splitext(path)[1]}"
            )
            if "r" in mode:
                with contextlib.suppress(FileNotFoundError):  # opening the copy raises this error
                    shutil.copyfile(path, shadow)
            if "a" in mode:
                self._appended.add(path)
        return self._shadows[path]

    def _move(self, original: Callable[..., None]) -> Callable[..., None]:
        def moved(source: object, target: object, **options: object) -> None:
            path = self._path(source)
            if path in self._shadows:
                self._shadows[absolute(target)] = self._shadows.pop(path)
                return
            original(source, target, **options)
            if path in self._told:
                self._tell(absolute(target))

        return moved

    def _remove(self, original: Callable[..., None]) -> Callable[..., None]:
        """Treat a file that another rank removed in this session as removed by this rank.

        All ranks clean up the same folder.
        """

        def removed(path: object, **options: object) -> None:
            known = self._path(path)
            if known is None or options.get("dir_fd") is not None:
                return original(path, **options)
            if self._shadows.pop(known, None) is not None:
                return None
            if os.path.lexists(known):
                # before the file is gone
                self._session.world.shared.set(f"removed/{self._session.rank}/{known}", "")
            try:
                original(path, **options)
            except FileNotFoundError:
                if not self._removed_by_another(known):
                    raise

        return removed

    def _remove_tree(self, original: Callable[..., None]) -> Callable[..., None]:
        def rmtree(path: object, *args: object, **options: object) -> None:
            tree = absolute(path)
            for shadow in [
                shadow for shadow in self._shadows if tree and shadow.startswith(tree + os.sep)
            ]:
                del self._shadows[shadow]
            original(path, *args, **options)

        return rmtree

    def _removed_by_another(self, path: str) -> bool:
        others = [rank for rank in range(self._session.world_size) if rank != self._session.rank]
        return any(self._session.world.shared.check([f"removed/{rank}/{path}"]) for rank in others)
