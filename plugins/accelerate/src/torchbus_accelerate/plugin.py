"""Adapts a session to Accelerate's loaders, processes and config file."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

import accelerate.data_loader
from accelerate.state import PartialState, is_initialized
from torchbus.plugin import Context, Unsupported, UsageError, hookimpl

from torchbus_accelerate.config import AccelerateConfig, merged

ORDER = (
    "a prepared loader's order depends on its number of passes (use_seedable_sampler, or a data set"
    " with set_epoch), and this run began with pass {}, the checkpoint with {}. Call"
    " loader.set_epoch(epoch) before each pass, with the epoch of s.epochs(...)"
)
NO_STRATEGY = (
    "accelerate_config={!r} without strategy='accelerate': it would do nothing. Pass"
    " strategy='accelerate' as well, or leave it out"
)


class Accelerate:
    """Lets the plugins of a session work on a loop that ``accelerator.prepare`` has changed.

    Accelerate stays in charge of models, gradients, precision and the division of the data. The
    plugin is active if the script imports accelerate, or under ``strategy="accelerate"``.

    Args:
        accelerate_config: the file of `accelerate config` that ``strategy="accelerate"`` reads.
            None means the file that the command writes by default.

    Raises:
        UsageError: a file is named without ``strategy="accelerate"``.
    """

    session_options = staticmethod(merged)

    def __init__(self, *, accelerate_config: str | os.PathLike[str] | None = None) -> None:
        if not isinstance(accelerate_config, AccelerateConfig | None):
            raise UsageError(NO_STRATEGY.format(os.fspath(accelerate_config)))
        self._config = accelerate_config
        self._loaders: list[weakref.ref[Any]] = []

    @hookimpl
    def session_start(self, session: Context) -> None:
        session.replace(accelerate.data_loader, "send_to_device", _followed(session))
        session.replace(accelerate.data_loader.DataLoaderStateMixin, "begin", self._noting)

    def state_dict(self) -> dict[str, list[int]]:
        """Return how many passes each prepared loader has ended, in the order of first passes."""
        alive = [loader() for loader in self._loaders]
        return {"passes": [0 if loader is None else loader.iteration for loader in alive]}

    def load_state_dict(self, state: dict[str, list[int]]) -> None:
        """Restore the numbers of passes of prepared loaders.

        Raises Unsupported if a number differs and the loader's order depends on it.
        """
        for reference, passes in zip(self._loaders, state["passes"], strict=False):
            loader = reference()
            if loader is None or loader.iteration == passes:
                continue
            if _orders_by_pass(loader):
                raise Unsupported(ORDER.format(loader.iteration, passes))
            loader.iteration = passes

    def _noting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def begin(loader: Any) -> Any:
            if not any(known() is loader for known in self._loaders):
                self._loaders.append(weakref.ref(loader))
            return original(loader)

        return begin

    @hookimpl
    def explain_lines(self, session: Context) -> dict[str, list[str]]:
        lines = [_words(session)] if is_initialized() else []
        lines += [] if self._config is None else [str(self._config)]
        return {"accelerate": lines} if lines else {}


def _followed(session: Context) -> Callable[[Any], Callable[..., Any]]:
    """Report to the session the batches that a prepared loader moves to its device.

    The loader fetches one batch ahead, so the session needs this to know which batch feeds a
    backward.
    """

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def send_to_device(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            moved = original(tensor, *args, **kwargs)
            session.batches.moved(tensor, moved)
            return moved

        return send_to_device

    return make


def _orders_by_pass(loader: Any) -> bool:
    batches = loader.batch_sampler
    parts = [loader.dataset, batches, getattr(batches, "sampler", None)]
    parts.append(getattr(getattr(batches, "batch_sampler", None), "sampler", None))
    return any(hasattr(part, "set_epoch") for part in parts)


def _words(session: Context) -> str:
    processes = PartialState().num_processes
    if processes == session.world_size > 1:
        return f"num_processes is {processes}: models and loaders that are prepared stay its own"
    return f"num_processes is {processes}: it leaves the ranks to the session"
