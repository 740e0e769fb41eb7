"""``session``: one line around a loop."""

from __future__ import annotations

import atexit
import functools
import sys
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from torchbus._bus import arguments, misuse
from torchbus._launch import Call
from torchbus._launch.join import joining
from torchbus._launch.start import relaunch
from torchbus._ranks.devices import Devices
from torchbus._ranks.ranks import Ranks
from torchbus._ranks.world import World
from torchbus._session.active import current
from torchbus._session.context import Context
from torchbus._session.explain import explain
from torchbus.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")


class Session(Ranks, metaclass=misuse.NeedsParentheses):
    """Everything that plugins do to the loop inside, and nothing outside.

    ``with session(...) as s:``, ``@session(...)`` on a function, or ``s = session(...).start()`` closed by
    ``s.close()`` or at exit.

    Args:
        plugins: plugin objects, or names of installed ones.
        strategy: "ddp" or another installed strategy, a strategy object, "auto" (ddp for more than one device), None.
        devices: number of ranks on this node (0 is CPU, -1 and "auto" all visible GPUs, or one rank on CPU), a list of
            GPU numbers, or a string such as "1,3".
        accelerator: "auto", "cpu" or "gpu".
        num_nodes: number of machines; with more than one set MASTER_ADDR, MASTER_PORT and NODE_RANK on each.
        launch: how other ranks start: "fork" (the block alone runs in them), "script" (the script is run again), "spawn" (new
            processes call the decorated function), "auto" (fork where that is safe, else script).
        logger: "local" or True, another installed logger, a logger object, or a list of them.
        capture: False leaves alone whatever was not given to ``adopt``.
        verbose: print ``explain()`` at the end of the first epoch.
        print_all_ranks: let every rank print, each line with its rank.
        timeout_s: after how many seconds torch gives a collective up.
        hang_timeout: after how many seconds of waiting for other ranks it is said where each rank is.
        freeze_timeout: after how many seconds without a sign of life of a rank's process the job is ended; math.inf for never.
        options: options of installed plugins, such as ``replace_sampler=False``.

    Raises:
        UsageError: before anything starts, for anything in the call that can't be.
    """

    def __init__(
        self,
        *plugins: object,
        strategy: object = "auto",
        devices: Devices = "auto",
        accelerator: str = "auto",
        num_nodes: int = 1,
        launch: str = "auto",
        logger: object = None,
        capture: bool = True,
        verbose: bool = False,
        print_all_ranks: bool = False,
        timeout_s: float = 1800.0,
        hang_timeout: float = 60.0,
        freeze_timeout: float = 600.0,
        **options: Any,
    ) -> None:
        self._arguments = {name: value for name, value in locals().items() if name not in ("self", "plugins", "options", "__class__")}
        arguments.check(self._arguments | options)
        self._plugins, self._options = plugins, options
        self._context = Context(self, plugins, self._arguments, options)
        self._verbs = self._context.verbs

    # Ways in and out -------------------------------------------------------------------------------------------

    def start(self) -> Session:
        """Enter without a ``with``; left by ``close()``, or at exit. Raises UsageError at a prompt, for what begins there must end there."""
        if self._context.has_many_ranks() and joining.world_size_seen() == 1:
            relaunch.refuse_start_at_a_prompt()
        self._context.block.enter(sys._getframe(1))
        atexit.register(self._context.block.leave_at_exit)
        return self

    def close(self, error: BaseException | None = None) -> None:
        """Leave a session that ``start()`` entered."""
        atexit.unregister(self._context.block.leave_at_exit)
        self._context.block.leave(error)

    def __enter__(self) -> Session:
        self._context.block.enter(sys._getframe(1))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._context.block.leave(error)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """As a decorator: each call of the function runs in a session of its own. Raises UsageError for one whose body runs later."""
        misuse.refuse_late_body(function)

        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            words = self._arguments | self._options
            inner = type(self)(*self._plugins, **words)
            inner._context.call = Call(run, function, args, kwargs, (self._plugins, words))
            with inner:
                return function(*args, **kwargs)

        return run

    # Verbs -----------------------------------------------------------------------------------------------------

    def log(self, name: str, value: Any, **options: Any) -> None:
        """Log one value. Needs torchbus-log, which documents the options."""
        self._verbs.log({name: value}, options)

    def log_dict(self, metrics: Mapping[str, Any], **options: Any) -> None:
        """Log several values. Needs torchbus-log."""
        if not isinstance(metrics, Mapping):
            raise UsageError(f"s.log_dict({type(metrics).__name__}): pass a dict from names to values")
        self._verbs.log(dict(metrics), options)

    def shard(self, *values: Any, repeat: bool = False) -> Any:
        """This rank's part of a batch or of a series of them that the script makes itself. Needs torchbus-sampler.

        A tensor, several (``x, y = s.shard(x, y)``), or a nesting of them, with the same dim 0, gives its contiguous share of dim 0; a
        range, a list or another iterable gives every world_size-th item, starting with this rank's, and none to two ranks. Gradients
        of the next ``backward`` are weighted accordingly. ``repeat=True``, for training: a rank without an item at the end repeats one,
        with weight 0. All ranks call it alike.
        """
        value = values[0] if len(values) == 1 else values
        if self.world_size == 1:
            return value
        self._verbs.need("shard", "shard")
        return self._context.bus.hook.shard(value=value, repeat=repeat)

    def explain(self) -> str:
        """What the session found, and what it does to each model, optimizer and loader, and why: one screen."""
        return explain(self._context)

    def adopt(self, *things: Any) -> Any:
        """Tell the session of models, optimizers, loaders or tensors: needed with ``capture=False``, and for parameters
        that no module and no optimizer holds. Returns what it was given. All ranks call it alike."""
        for thing in things:
            self._context.adopted.add(thing)
        return things[0] if len(things) == 1 else things

    def add_plugin(self, plugin: object, name: str | None = None) -> None:
        """Register one more plugin. Where the session has begun, it is started at once. All ranks call it alike."""
        self._context.add_plugin(plugin, name)

    # Ranks -----------------------------------------------------------------------------------------------------

    @property
    def world(self) -> World:  # type: ignore[override]
        """Where this process stands among the others."""
        return self._context.world

    @property
    def rank(self) -> int:
        """This process's number among all ranks, from 0."""
        self._context.rank_asked = True
        return self.world.rank

    @property
    def local_rank(self) -> int:
        """This process's number among the ranks of its node, from 0."""
        self._context.rank_asked = True
        return self.world.local_rank

    # Inside ----------------------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        """Verbs that plugins bring (their ``verbs``): the plugin becomes active when the first one is used."""
        if name.startswith("_"):
            raise AttributeError(name)
        return self._verbs.find(name)


session = Session

__all__ = ["Session", "current", "session"]
