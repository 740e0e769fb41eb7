"""``session``: one line around a loop."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from types import FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

from torchbus._batches.feeding import Batches
from torchbus._batches.share import Share
from torchbus._bus import arguments, misuse
from torchbus._bus.bus import Bus
from torchbus._bus.verbs import Verbs
from torchbus._launch import Call, Job, Request, start
from torchbus._launch.join import joining
from torchbus._launch.start import inherited, relaunch
from torchbus._ranks.devices import DevicePlan, Devices, plan_devices
from torchbus._ranks.random_streams import RandomStreams
from torchbus._ranks.ranks import Ranks
from torchbus._ranks.world import World
from torchbus._redaction import Redactor
from torchbus._seams import Seams
from torchbus._session.active import current
from torchbus._session.adoption import Adopted
from torchbus._session.block import Block
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
        self._arguments |= options
        self._plugins = plugins
        arguments.check(self._arguments)
        self._devices = inherited.device_plan() or plan_devices(devices, accelerator)
        self._request = Request(
            self._devices, num_nodes, launch, devices != "auto", print_all_ranks, timedelta(seconds=timeout_s), hang_timeout,
            freeze_timeout,
        )  # fmt: skip
        self._named = arguments.resolve(plugins, self._strategy(strategy), logger, options)
        self._call: Call | None = None
        self.world = World(device=self._devices.device(0))
        self.job: Job | None = None
        self.bus = Bus(dir(type(self)))
        self.seams = Seams(self.bus)
        self.under_command = False  # `torchbus run`
        self.adopted = Adopted(self.bus, capture)
        self.block = Block(self)
        self._verbs = Verbs(self)
        self.random = RandomStreams(lambda: self.job.backwards if self.job is not None else 0)
        self.share = Share()
        self.redactor = Redactor()
        self.batches = Batches(self)
        self.on_close = ExitStack()
        self.gathers_states = True
        self.options = dict(self._arguments)
        for name, plugin in self._named:
            self.bus.register(plugin, name)
        self.bus.check_pending()
        arguments.refuse_deaf(self.bus, strategy=strategy, logger=logger)

    # Ways in and out -------------------------------------------------------------------------------------------

    def start(self) -> Session:
        """Enter without a ``with``; left by ``close()``, or at exit. Raises UsageError at a prompt, for what begins there must end there."""
        if self._many_ranks() and joining.world_size_seen() == 1:
            relaunch.refuse_start_at_a_prompt()
        self.block.enter(sys._getframe(1))
        atexit.register(self.block.leave_at_exit)
        return self

    def close(self, error: BaseException | None = None) -> None:
        """Leave a session that ``start()`` entered."""
        atexit.unregister(self.block.leave_at_exit)
        self.block.leave(error)

    def __enter__(self) -> Session:
        self.block.enter(sys._getframe(1))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.block.leave(error)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """As a decorator: each call of the function runs in a session of its own. Raises UsageError for one whose body runs later."""
        misuse.refuse_late_body(function)

        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            inner = type(self)(*self._plugins, **self._arguments)
            inner._call = Call(run, function, args, kwargs, (self._plugins, self._arguments))
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
        return self.bus.hook.shard(value=value, repeat=repeat)

    def explain(self) -> str:
        """What the session found, and what it does to each model, optimizer and loader, and why: one screen."""
        return explain(self)

    def adopt(self, *things: Any) -> Any:
        """Tell the session of models, optimizers, loaders or tensors: needed with ``capture=False``, and for parameters
        that no module and no optimizer holds. Returns what it was given. All ranks call it alike."""
        for thing in things:
            self.adopted.add(thing)
        return things[0] if len(things) == 1 else things

    def captures(self, thing: object) -> bool:
        """For plugins: whether the session may act on this model, optimizer or loader."""
        return self.adopted.includes(thing)

    # For plugins -----------------------------------------------------------------------------------------------

    @property
    def timeout(self) -> timedelta:
        """After how long torch gives a collective up."""
        return self._request.timeout

    def start_ranks(self, launch: str | None = None) -> World:
        """For strategies: join or start the ranks (in the form ``launch``, if it is given), and return this one's world. A
        world of one needs nothing."""
        if not self._many_ranks():
            return self.world
        self.job = start(self._request if launch is None else dataclasses.replace(self._request, launch=launch), self._call)
        self.job.evaluates = lambda: self.random.current == "evaluation"
        self.world = self.job.world
        return self.world

    def add_plugin(self, plugin: object, name: str | None = None) -> None:
        """Register one more plugin. Where the session has begun, it is started at once."""
        self.bus.register(plugin, name)
        try:
            self.bus.check_pending()
            if self.block.has_begun:
                self.bus.start(plugin, self)
        except BaseException:
            self.bus.unregister(plugin)
            raise
        if self.is_inside:
            self.seams.refresh()

    @property
    def ranks_asked_for(self) -> int:
        """As the call says, or, where there is a strategy, a launcher's variables."""
        named = self._devices.count * self._request.num_nodes if self._request.explicit_devices else self._request.num_nodes
        return named if self.options["strategy"] is None else max(named, joining.world_size_seen())

    @property
    def frame(self) -> FrameType | None:
        """Where the block was entered, while that runs."""
        return self.block.frame

    @property
    def is_inside(self) -> bool:
        """Whether the loop runs: False until ``session_start`` is over, and after the end."""
        return self.block.runs

    @contextmanager
    def in_parts(self) -> Iterator[None]:
        """Meanwhile ``state_dict()`` of divided models and optimizers has this rank's parts, and nothing is sent; strategies that divide them
        look at ``gathers_states``."""
        before, self.gathers_states = self.gathers_states, False
        try:
            yield
        finally:
            self.gathers_states = before

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Until the end of the block ``owner.name`` is ``make(original)``; ``explain()`` lists it among the seams."""
        self.on_close.callback(self.seams.replace(owner, name, make))

    def end_discovery(self) -> None:
        """The models are known: remove the hook that looks for them."""
        self.seams.retire("model_found")

    # Inside ----------------------------------------------------------------------------------------------------

    def _strategy(self, strategy: object) -> object:
        """"auto" is ddp where there is more than one rank, and nothing where there is one."""
        if strategy != "auto":
            return strategy
        return "ddp" if self._many_ranks() else None

    def _many_ranks(self) -> bool:
        return self._devices.count * self._request.num_nodes > 1 or joining.world_size_seen() > 1

    def __getattr__(self, name: str) -> Any:
        """Verbs that plugins bring (their ``verbs``): the plugin becomes active when the first one is used."""
        if name.startswith("_") or "bus" not in vars(self):
            raise AttributeError(name)
        return self._verbs.find(name)

    def forget(self) -> None:
        """A closed session holds on to nothing of the caller's."""
        self.world = dataclasses.replace(self.world, store=None)
        self._call = None
        self._verbs.forget_listeners()
        self.adopted.clear()
        self.batches.clear()


session = Session

__all__ = ["DevicePlan", "Session", "current", "session"]
