"""``session(...)``: runs a training loop with plugins, as a context manager or a decorator."""

from __future__ import annotations

import atexit
import functools
import inspect
import typing
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, cast

from torchbus import events
from torchbus.bus import options
from torchbus.bus.base import Plugin, checked_filter
from torchbus.bus.options import check, plain
from torchbus.bus.registry import Bus
from torchbus.bus.selection import expand_preset
from torchbus.runtime import active
from torchbus.runtime.context import Context
from torchbus.runtime.explain import explain
from torchbus.runtime.user_code import caller
from torchbus.world import Collectives, Devices, Ranks, World

if typing.TYPE_CHECKING:
    from typing_extensions import Unpack

    from torchbus.installed import MoreLoggers, MoreStrategies, MoreVerbs
    from torchbus.known_options import KnownOptions, LoggerName, StrategyName
    from torchbus.known_verbs import KnownVerbs

    class Verbs(KnownVerbs, MoreVerbs): ...

else:
    Verbs = object

NEVER_ENTERED = (
    "this session was never entered, and did nothing: write `with session(...) as s:` around the"
    " loop, or session(...).start()"
)
P = ParamSpec("P")
R = TypeVar("R")


class Session(Ranks, Verbs, metaclass=options.NeedsParentheses):
    """The context manager around a training loop, in which its plugins are active.

    Use ``with session(...) as s:``, or ``@session(...)`` on a function, or ``s =
    session(...).start()`` with ``s.close()`` at the end.

    Args:
        plugins: plugin objects, or names of installed ones.
        strategy: "ddp" or another installed strategy, a strategy object, "auto" (ddp for more than
            one device), or None.
        devices: number of ranks on this node (0 is CPU; -1 and "auto" are all visible GPUs, or one
            rank on CPU), a list of GPU numbers, or a string such as "1,3".
        accelerator: "auto", "cpu", "gpu" (whatever torch finds), or a device type such as "cuda",
            "xpu" or "mps".
        num_nodes: number of machines. With more than one, set MASTER_ADDR, MASTER_PORT and
            NODE_RANK on each.
        launch: how other ranks start. "fork": they run only the block. "script": they run the
            script again. "spawn": new processes call the decorated function. "auto": fork if that
            is safe, else script.
        logger: "local" or True, another installed logger, a logger object, a list, or None.
        capture: whether to act on all models, optimizers and loaders, or only on adopted ones.
        seed: seeds torch on all devices, Python and NumPy at the beginning of the block, the same
            on all ranks.
        prefetch: on an accelerator, 1 copies the next batch during a step; 0 does not.
        verbose: print ``explain()`` at the end of the first epoch.
        print_all_ranks: let every rank print, each line with its rank.
        timeout_s: seconds that a rank waits in a collective before the job ends.
        hang_timeout: seconds of waiting for other ranks after which the session reports where each
            rank is.
        freeze_timeout: seconds without a sign of life from a rank's process after which the session
            ends the job; ``math.inf`` for never.
        options: options of installed plugins, such as ``replace_sampler=False``.

    Raises: UsageError: before anything starts, if the call is wrong.
    """

    def __init__(
        self,
        *plugins: object,
        strategy: StrategyName | typing.Literal["auto"] | MoreStrategies | Plugin | None = "auto",
        devices: Devices = "auto",
        accelerator: str = "auto",
        num_nodes: int = 1,
        launch: typing.Literal["auto", "script", "fork", "spawn"] = "auto",
        logger: (
            LoggerName | MoreLoggers | bool | Plugin | Sequence[LoggerName | Plugin] | None
        ) = (),
        capture: bool = True,
        seed: int | None = None,
        prefetch: int = 1,
        verbose: bool = False,
        print_all_ranks: bool = False,
        timeout_s: float = 1800.0,
        hang_timeout: float = 60.0,
        freeze_timeout: float = 600.0,
        **options: Unpack[KnownOptions],
    ) -> None:
        given = locals()
        self._plugins = plugins
        self._options = expand_preset(
            plain({name: given[name] for name in CORE_OPTIONS} | {**options})
        )
        self._arguments = {name: self._options.pop(name) for name in CORE_OPTIONS}
        check(self._arguments)
        bus = Bus(events, dir(type(self)))
        self._context = Context(self, bus, plugins, self._arguments, self._options)
        made_in = caller()
        self._never_entered = weakref.finalize(
            self, _warn_of_unused, made_in.f_code.co_filename, made_in.f_lineno
        )

    # Ways in and out -----------------------------------------------------------------------------

    def start(self) -> Session:
        """Enter the session without ``with``. ``close()`` leaves it, or the end of the process
        does.

        Raises UsageError at an interactive prompt if there are several ranks: they would never see
        the end of the block.
        """
        self._context.launcher.refuse_prompt()
        self.__enter__()
        atexit.register(self._context.leave_at_exit)
        return self

    def close(self, error: BaseException | None = None) -> None:
        """Leave a session that ``start()`` entered, with the loop's ``error`` if it has failed."""
        self._never_entered.detach()
        atexit.unregister(self._context.leave_at_exit)
        self._context.leave(error)

    def __enter__(self) -> Session:
        self._never_entered.detach()
        self._context.enter(caller())
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._context.leave(error)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function: each call of it runs in a new session.

        Raises UsageError for a function whose body runs later (a generator, ``async def``).
        """
        options.refuse_late_body(function)
        self._never_entered.detach()

        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            given = self._arguments | self._options
            inner = type(self)(*self._plugins, **cast(Any, given))
            inner._context.launcher.decorate(run, function, args, kwargs, (self._plugins, given))
            inner._context.adopted.arguments = [*args, *kwargs.values()]
            inner._context.steps.read_by(getattr(inspect.unwrap(function), "__code__", None))
            with inner:
                return function(*args, **kwargs)

        return run

    # In the loop ---------------------------------------------------------------------------------

    def explain(self) -> str:
        """Return a screen: what the session does to each object, and why. Any rank may call it."""
        self._never_entered.detach()
        return explain(self._context)

    def name_of(self, thing: object) -> str:
        """Return the name of a model, layer, parameter, optimizer or loader, or "".

        The name is that of the variable. For a part of a model, it is the model's variable and the
        path, such as "net.0.weight". The call searches all models: make it rarely.
        """
        return self._context.names_of([thing])[0]

    def adopt(self, *things: object) -> Any:
        """Adopt models, optimizers, loaders or tensors into the session, and return them.

        Needed with ``capture=False``, and for parameters, of any shape and dtype, that no module
        and no optimizer holds. A call before the block takes effect when the block begins. All
        ranks must call it. Raises UsageError for other objects, and after the block.
        """
        for thing in things:
            self._context.adopt(thing)
        return things[0] if len(things) == 1 else things

    def add_plugin(self, plugin: object, name: str | None = None) -> None:
        """Register one more plugin; if the session has begun, start it at once. All ranks must call
        it.

        Raises UsageError if it is not a plugin, and PluginConflict if an active plugin owns the
        same role.
        """
        self._context.add_plugin(plugin, name)

    def on(
        self,
        event: str,
        function: Callable[..., object] | None = None,
        *,
        every: int = 1,
        once: bool = False,
        main_only: bool = False,
    ) -> Callable[..., Any]:
        """Call a function at an event, after the plugins that listen to it. Also a decorator.

        Write ``s.on("after_optimizer_step", show, every=50)``. The function takes any of the
        event's arguments, by name. ``every=50`` calls it the 50th, 100th, ... time from now on,
        ``once`` only the first of these, ``main_only`` only on rank 0. Returns the function. All
        ranks must call it. Raises UsageError for an invalid filter or an unknown event.
        """
        given = checked_filter(every, once, main_only)
        self._context.steps.begin(self._context.is_inside)  # the function may read global_step

        def listen(function: Callable[..., Any]) -> Callable[..., Any]:
            self._context.add_listener(event, function, given)
            return function

        return listen if function is None else listen(function)

    @property
    def global_step(self) -> int:
        """How many steps the loop has made: optimizers that step in turn make one together.

        A resumed run continues the count. Without a plugin that counts, the count begins if the
        file that opens the block reads it. Raises UsageError if another module reads it first, and
        after the first forward.
        """
        return self._context.steps.asked(self._context.is_inside)

    @property
    def collectives(self) -> Collectives:
        """The object that computes ``s.reduce`` and ``s.all_gather``."""
        return self._context.collectives

    # Ranks ---------------------------------------------------------------------------------------

    @property
    def world(self) -> World:  # type: ignore[override]
        """This process's place among the others."""
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

    # Inside --------------------------------------------------------------------------------------

    if not typing.TYPE_CHECKING:  # type checkers know the verbs, and report all other names

        def __getattr__(self, name: str) -> Any:
            """A verb of a plugin, which becomes active when its first verb is used."""
            if name.startswith("_"):
                raise AttributeError(name)
            return self._context.verbs.find(name)

    def __repr__(self) -> str:
        state, of = "running" if self._context.is_inside else "not running", self.world
        return f"<torchbus session, {state}: rank {of.rank} of {of.world_size} on {of.device}>"

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._context.verbs.names()})


def _warn_of_unused(file: str, line: int) -> None:
    warnings.warn_explicit(NEVER_ENTERED, UserWarning, file, line)


session = Session
CORE_OPTIONS = tuple(inspect.getfullargspec(Session.__init__).kwonlyargs)


def current() -> Session | None:
    """Return the active session of this process, or None."""
    running = active.running()
    return None if running is None else cast(Session, running.user)


__all__ = ["Session", "current", "session"]
