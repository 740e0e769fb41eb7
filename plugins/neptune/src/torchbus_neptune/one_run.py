"""One run, rank 0's, for a script that calls ``neptune.init_run`` itself."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import partial

from torchbus.plugin import Context, hookimpl

from torchbus_neptune.logger import NeptuneLogger

FOLDER = "NEPTUNE_DATA_DIRECTORY"  # the client reads it when a run begins


class OneRun:
    """On the other ranks, runs have the client's mode "debug": they send nothing.

    What that mode writes goes to a temporary folder.
    """

    @hookimpl
    def session_start(self, session: Context) -> None:
        from neptune import Run

        if not session.is_main and not _reported_by_all(session):
            folder = tempfile.mkdtemp()
            session.on_close.callback(shutil.rmtree, folder, ignore_errors=True)
            session.replace(Run, "__init__", partial(silent, folder))

    @hookimpl
    def explain_lines(self, session: Context) -> dict[str, list[str]] | None:
        if session.world_size == 1 or _reported_by_all(session):
            return None
        return {"loggers": ["neptune: where the script calls it itself, rank 0's calls count"]}


def _reported_by_all(session: Context) -> bool:
    """Whether a logger lets every rank write into the run."""
    return any(
        isinstance(plugin, NeptuneLogger) and plugin.on_all_ranks
        for _, plugin in session.bus.plugins()
    )


def silent(folder: str, original: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: object, *args: object, **kwargs: object) -> None:
        before = os.environ.get(FOLDER)
        os.environ[FOLDER] = folder
        try:
            original(self, *args, **{**kwargs, "mode": "debug"})
        finally:
            del os.environ[FOLDER]
            if before is not None:
                os.environ[FOLDER] = before

    return __init__


def before_the_block() -> None:
    """Silence runs that a launched rank makes before the block."""
    from neptune import Run

    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    Run.__init__ = silent(folder, Run.__init__)  # type: ignore[method-assign]
