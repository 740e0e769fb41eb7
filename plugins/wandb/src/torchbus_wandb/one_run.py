"""One run, rank 0's, for a script that calls ``wandb.init`` and ``wandb.log`` itself."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from torchbus.plugin import Context, hookimpl

from torchbus_wandb.logger import WandbLogger

if TYPE_CHECKING:
    import wandb


SHARED_FIELDS = ("id", "name", "dir")
RANK0_WITHIN_S = 60.0
"""How long another rank waits for rank 0's run. It may have none: the script may ask for it."""


class OneRun:
    """Disables wandb on the other ranks until the session ends, as ``WANDB_MODE=disabled`` does.

    There ``wandb.log`` and everything else still work, and do nothing. If the script has imported
    wandb before the block, this holds also for calls with another ``mode=``.

    There a run has the id, the name and the folder of rank 0's: what the script saves in it, or
    under its id, has one place.

    Source: https://docs.wandb.ai/models/track/environment-variables
    """

    def __init__(self) -> None:
        self._runs = 0

    @hookimpl(trylast=True)
    def session_start(self, session: Context) -> None:
        if session.world_size == 1 or _reported_by_all(session):
            return
        if not session.is_main:
            session.on_close.callback(_restore, os.environ.get("WANDB_MODE"))
            os.environ["WANDB_MODE"] = "disabled"
        wandb = sys.modules.get("wandb")
        if wandb is None:
            return
        if wandb.run is not None:
            self._agree(session, wandb.run)
        if not session.is_main:
            session.replace(wandb, "init", _disabled)
        session.replace(wandb, "init", partial(self._made, session))

    def _made(self, session: Context, original: Callable[..., wandb.Run]) -> Callable[..., object]:
        def init(*args: object, **kwargs: object) -> object:
            return self._agree(session, original(*args, **kwargs))

        return init

    def _agree(self, session: Context, run: wandb.Run) -> wandb.Run:
        """Send the run's name to the other ranks, or give this run rank 0's name."""
        self._runs += 1
        key, store = f"wandb/run/{self._runs}", session.world.shared
        if session.is_main:
            store.set(key, json.dumps({name: getattr(run, name) for name in SHARED_FIELDS}))
        elif session.job is not None and session.job.wait_until(
            lambda store: store.check([key]), RANK0_WITHIN_S
        ):
            mine = {name: property(_always(value)) for name, value in _read(store.get(key)).items()}
            run.__class__ = type(type(run).__name__, (type(run),), mine)
        return run

    @hookimpl
    def explain_lines(self, session: Context) -> dict[str, list[str]] | None:
        if session.world_size == 1 or _reported_by_all(session):
            return None
        return {"loggers": ["wandb: where the script calls it itself, rank 0's calls count"]}


def _read(text: bytes) -> dict[str, Any]:
    return dict(json.loads(text))


def _always(value: object) -> Callable[[object], object]:
    return lambda run: value


def _reported_by_all(session: Context) -> bool:
    """Whether a logger lets every rank write into the run."""
    return any(
        isinstance(plugin, WandbLogger) and plugin.on_all_ranks
        for _, plugin in session.bus.plugins()
    )


def _disabled(original: Callable[..., wandb.Run]) -> Callable[..., wandb.Run]:
    def init(*args: object, **kwargs: object) -> wandb.Run:
        return original(*args, **{**kwargs, "mode": "disabled"})

    return init


def before_the_block() -> None:
    """Silence runs that a launched rank makes before the block."""
    wandb: Any = sys.modules["wandb"]
    wandb.init = _disabled(wandb.init)


def _restore(mode: str | None) -> None:
    if mode is None:
        os.environ.pop("WANDB_MODE", None)
    else:
        os.environ["WANDB_MODE"] = mode
