"""One run, rank 0's, for a script that calls ``wandb.init`` and ``wandb.log`` itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from torchbus.plugin import Context, hookimpl

from torchbus_wandb.logger import WandbLogger

if TYPE_CHECKING:
    import wandb


class OneRun:
    """Disables wandb on the other ranks until the session ends, as ``WANDB_MODE=disabled`` does.

    There ``wandb.log`` and everything else still work, and do nothing. If the script has imported
    wandb before the block, this holds also for calls with another ``mode=``.

    Source: https://docs.wandb.ai/models/track/environment-variables
    """

    @hookimpl
    def session_start(self, session: Context) -> None:
        if session.is_main or _reported_by_all(session):
            return
        session.on_close.callback(_restore, os.environ.get("WANDB_MODE"))
        os.environ["WANDB_MODE"] = "disabled"
        wandb = sys.modules.get("wandb")
        if wandb is not None:
            session.replace(wandb, "init", _disabled)

    @hookimpl
    def explain_lines(self, session: Context) -> dict[str, list[str]] | None:
        if session.world_size == 1 or _reported_by_all(session):
            return None
        return {"loggers": ["wandb: where the script calls it itself, rank 0's calls count"]}


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


def _restore(mode: str | None) -> None:
    if mode is None:
        os.environ.pop("WANDB_MODE", None)
    else:
        os.environ["WANDB_MODE"] = mode
