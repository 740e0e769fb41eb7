"""One run, rank 0's, for a script that calls ``neptune.init_run`` itself."""

from __future__ import annotations

from collections.abc import Callable

from torchbus.plugin import Context, hookimpl

from torchbus_neptune.logger import NeptuneLogger


class OneRun:
    """On the other ranks, runs have the client's mode "debug": they store and send nothing."""

    @hookimpl
    def session_start(self, session: Context) -> None:
        from neptune import Run

        if not session.is_main and not _reported_by_all(session):
            session.replace(Run, "__init__", silent)

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


def silent(original: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: object, *args: object, **kwargs: object) -> None:
        original(self, *args, **{**kwargs, "mode": "debug"})

    return __init__


def before_the_block() -> None:
    """Silence runs that a launched rank makes before the block."""
    from neptune import Run

    Run.__init__ = silent(Run.__init__)  # type: ignore[method-assign]
