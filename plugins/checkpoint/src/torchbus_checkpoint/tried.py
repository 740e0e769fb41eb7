"""Where ``s.save`` writes and ``s.load`` reads during a trial run (``fast_dev_run``)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from torchbus.plugin import Context

BESIDE = ".fast_dev_run"


class Places:
    """Returns the script's own paths; during a trial run, temporary folders beside them."""

    def __init__(self, session: Context) -> None:
        self._session = session
        self._tried: set[Path] = set()
        if session.dry_run and session.is_main:
            session.on_close.callback(self._remove)

    def to_write(self, path: str | os.PathLike[str]) -> Path:
        """Return where ``s.save(path)`` writes."""
        final = Path(path).absolute()
        if not self._session.dry_run:
            return final
        self._tried.add(final)
        return _beside(final)

    def to_read(self, path: str | os.PathLike[str]) -> Path:
        """Return where ``s.load(path)`` reads."""
        final = Path(path).absolute()
        return _beside(final) if final in self._tried else final

    def _remove(self) -> None:
        for path in self._tried:
            shutil.rmtree(_beside(path), ignore_errors=True)


def _beside(path: Path) -> Path:
    return path.with_name(path.name + BESIDE)
