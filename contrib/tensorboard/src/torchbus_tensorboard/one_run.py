"""One run, rank 0's, for a script that makes a ``SummaryWriter`` itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchbus.plugin import Context, hookimpl

from torchbus_tensorboard.logger import TensorBoardLogger


class Silent:
    """A file writer that discards everything, for a ``SummaryWriter`` on the other ranks."""

    def __init__(self, logdir: str, *args: object, **kwargs: object) -> None:
        self._logdir = logdir

    def get_logdir(self) -> str:
        return self._logdir

    def add_event(self, event: object) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class OneRun:
    """On the other ranks, writers write nothing.

    A script that has asked for its rank may have a writer for each: they are left as they are.
    """

    @hookimpl
    def session_start(self, session: Context) -> None:
        from torch.utils.tensorboard import writer

        if session.is_main or _reported_by_all(session):
            return

        def made(original: Callable[..., Any]) -> Callable[..., Any]:
            def make(logdir: str, *args: object, **kwargs: object) -> Any:
                kind = original if session.rank_asked else Silent
                return kind(logdir, *args, **kwargs)

            return make

        session.replace(writer, "EventFileWriter", made)

    @hookimpl
    def explain_lines(self, session: Context) -> dict[str, list[str]] | None:
        if session.world_size == 1 or _reported_by_all(session):
            return None
        return {"loggers": ["tensorboard: of the script's own writers, rank 0's write"]}


def _reported_by_all(session: Context) -> bool:
    """Whether a logger has a folder for each rank."""
    return any(
        isinstance(plugin, TensorBoardLogger) and plugin.on_all_ranks
        for _, plugin in session.bus.plugins()
    )


def before_the_block() -> None:
    """Silence writers that a launched rank makes before the block."""
    from torch.utils.tensorboard import writer

    writer.EventFileWriter = Silent  # type: ignore[misc]
