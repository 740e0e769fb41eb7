"""Files of a try: what ``torch.save`` writes goes beside its path, and away at the end."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torchbus.plugin import Context, hookimpl

BESIDE = ".fast_dev_run"


class TriedFiles:
    """Lets the block load its saved files, and leaves the files of real runs as they are."""

    def __init__(self, session: Context) -> None:
        self._session = session
        self._saved: set[str] = set()
        session.replace(torch, "load", self._loads)
        session.on_close.callback(self._remove)

    @hookimpl(tryfirst=True)
    def save_file(self, path: str, write: Callable[[str], None]) -> bool | None:
        if path.endswith(BESIDE):
            return None
        beside, real = path + BESIDE, os.path.realpath(path)
        self._saved.add(real)
        if self._session.bus.hook.save_file(path=beside, write=write) is None:
            write(beside)
        if self._session.world_size > 1:
            self._session.world.shared.set(_key(real), "")
        return True

    def _loads(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def load(f: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(f, str | os.PathLike) and self._has(os.path.realpath(os.fspath(f))):
                f = f"{os.fspath(f)}{BESIDE}"
            return original(f, *args, **kwargs)

        return load

    def _has(self, real: str) -> bool:
        if real in self._saved or self._session.world_size == 1:
            return real in self._saved
        return self._session.world.shared.check([_key(real)])

    def _remove(self) -> None:
        for path in self._saved:
            with suppress(OSError):
                os.unlink(path + BESIDE)


def _key(path: str) -> str:
    return f"debug/tried/{path}"
