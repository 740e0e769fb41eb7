"""The context: services of a session for its plugins."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from datetime import timedelta
from functools import cached_property
from importlib.metadata import EntryPoint
from types import FrameType, SimpleNamespace
from typing import Any, cast

from torchbus.bus import discovery
from torchbus.bus import selection as arguments
from torchbus.bus.base import Filter, listener
from torchbus.bus.options import refuse_verb
from torchbus.bus.registry import Bus
from torchbus.bus.verbs import VerbFinder, refuse_outside
from torchbus.errors import UsageError
from torchbus.objects import Adopted, names_of
from torchbus.patches.active import Seams
from torchbus.runtime import active
from torchbus.runtime.services import BatchService, JobService, Launcher, RandomService, make
from torchbus.runtime.steps import StepCounter
from torchbus.runtime.user_code import FrameMark, users_frame
from torchbus.world import Collectives, Ranks, Share, World

Plugins = tuple[object, ...]
Options = Mapping[str, Any]


class Context(Ranks):
    """The parts of one session, and what its plugins may do with them.

    ``user`` is the ``Session`` of the script, ``bus`` the registry of listeners, and ``seams`` the
    patches of torch. ``captures(thing)`` returns whether the session may act on a model, optimizer
    or loader. ``launcher`` starts or joins the ranks. ``job`` is the link to the other ranks, or
    None if there is one rank. ``share`` is this rank's share of the global batch. ``steps`` counts
    the loop's real steps. ``on_close`` holds what to undo at the end of the block, the last first.
    ``options`` are those of the call. ``has_begun`` is True from ``session_start`` until the
    session is over, and ``is_inside`` while the loop runs.
    """

    def __init__(
        self, user: object, bus: Bus, plugins: Plugins, core_options: Options, options: Options
    ) -> None:
        """``core_options`` are the session's own, checked; ``options`` are those of plugins."""
        self.user = user
        self.options: Options = {**core_options, **options}
        self.launcher: Launcher = make("launcher", self, Launcher)
        self.world = World(device=self.launcher.device)
        self.job: JobService | None = None
        self.bus = bus
        bus.is_main = lambda: self.world.is_main
        self.verbs = VerbFinder(bus, user, self._activate)
        self.seams = Seams(self.bus)
        self.under_command = False  # `torchbus run`
        self.adopted = Adopted(self.bus, core_options["capture"])
        self.captures = self.adopted.includes
        self.share = Share()
        self.steps = StepCounter(self.bus)
        self.on_close = ExitStack()
        self.gathers_states = True
        self.has_begun = self.is_inside = False
        self._undo: ExitStack | None = None
        self._error_before = getattr(sys, "last_value", None)
        self._mark: FrameMark | None = None
        self._was_used = False
        self.rank_asked = False
        """Whether the script has read ``rank`` or ``local_rank``, so it may differ by rank."""
        self._register(plugins, core_options, options)

    @cached_property
    def batches(self) -> BatchService:
        """The batches that the loop gets, and which of them feed a backward."""
        return cast(BatchService, make("batches", self))

    @cached_property
    def redactor(self) -> Any:
        """Removes secrets from text before it is shown or written."""
        return make(
            "redactor", self, lambda _: SimpleNamespace(text=str, plain=lambda value: value)
        )

    @cached_property
    def collectives(self) -> Collectives:
        """Computes ``reduce`` and ``all_gather`` over the ranks."""
        return cast(Collectives, make("collectives", self))

    @cached_property
    def random(self) -> RandomService:
        """The streams of random numbers: a common one, and one for this rank."""
        return cast(RandomService, make("random", self))

    def _register(self, plugins: Plugins, core_options: Options, options: Options) -> None:
        """Register the plugins that the call gives and names."""
        strategy = core_options["strategy"]
        if strategy == "auto":
            is_needed = self.launcher.has_many_ranks() and not arguments.bring_a_strategy(plugins)
            strategy = arguments.default_strategy() if is_needed else None
        named = arguments.resolve(plugins, strategy, core_options, options)
        self.bus.on_change.append(self.verbs.forget)
        for name, plugin in named:
            self.bus.register(plugin, name)
        self.bus.check_pending()

    def names_of(self, things: Iterable[object]) -> list[str]:
        """Return what ``s.name_of`` does, for many things with one search."""
        return names_of(things, users_frame()[0])

    @property
    def timeout(self) -> timedelta:
        """How long a rank waits in a collective before the job ends."""
        return self.launcher.timeout

    def start_ranks(self, launch: str | None = None, *, alone: bool = False) -> World:
        """For strategies: join or start the ranks, and return this rank's world.

        ``launch`` overrides the form that the call names. With one rank, nothing is started. If
        ``alone``, one rank gets a job and a store too, because it will connect to ranks of other
        sessions.
        """
        if not (alone or self.launcher.has_many_ranks()):
            return self.world
        self.job = self.launcher.start(launch)
        self.job.evaluates = lambda: self.random.current == "evaluation"
        self.world = self.job.world
        return self.world

    def change_world(self, **changes: Any) -> None:
        """For strategies: give this rank another device, or divide the data in another way."""
        self.world = dataclasses.replace(self.world, **changes)

    def add_plugin(self, plugin: object, name: str | None = None) -> None:
        """Register one more plugin. If the session has begun, start it at once."""
        self.bus.register(plugin, name)
        try:
            self.bus.check_pending()
            if self.has_begun:
                self.bus.start(plugin, self)
        except BaseException:
            self.bus.unregister(plugin)
            raise

    def _activate(self, verb: str, entry: EntryPoint) -> object:
        """Add the plugin that provides a verb, in mid-session."""
        refuse_outside(verb, self.has_begun)
        refuse_verb(discovery.load(entry), verb)
        active = [type(plugin) for _, plugin in self.bus.plugins()]
        named = arguments.with_companions(entry, active)
        for name, plugin in named:
            self.add_plugin(plugin, name)
        return named[0][1]

    def add_listener(self, event: str, function: Callable[..., Any], given: Filter) -> None:
        """Register a function of the script. It comes after all plugins and earlier functions.

        Its name is the same on all ranks. Raises UsageError if there is no such event, or the
        function takes other arguments.
        """
        before = f"s.on {event} "
        there = sum(name.startswith(before) for name, _ in self.bus.plugins())
        self.add_plugin(listener(event, function, given), f"{before}{there + 1}")

    @property
    def frame(self) -> FrameType | None:
        """The frame that entered the block, while it runs."""
        return None if self._mark is None else self._mark.find()

    def stop_for(self, error: BaseException) -> None:
        """End the job for an error that is about to be raised, even if the loop catches it."""
        if self.job is not None:
            self.job.stop_for(error)

    @property
    def dry_run(self) -> bool:
        """Whether plugins write no checkpoint, and start no run of a tracker."""
        return any(getattr(one, "dry_run", False) for _, one in self.bus.plugins())

    def replace(self, owner: object, name: str, make: Callable[[Any], object]) -> None:
        """Replace ``owner.name`` by ``make(original)`` until the end of the block.

        ``explain()`` lists the replacement among the patches.
        """
        self.seams.replace([(owner, name, make)], self.on_close)

    def adopt(self, thing: object) -> None:
        """Let the session act on an object, from the start of the block if that has not begun."""
        if self._was_used:
            refuse_outside("adopt", self.is_inside)
        self.adopted.add(thing, self.is_inside)

    def end_discovery(self) -> None:
        """Remove the hook that looks for models: they are all known."""
        self.seams.retire("model_found")

    # Ways in and out. Leaving undoes each step of entering, in reverse order. An error in one part
    # does not keep the others from running.

    def enter(self, frame: FrameType) -> None:
        """Enter from the caller's ``frame``. Raises UsageError if a session can't begin here."""
        active.refuse_nesting()
        if self._was_used:
            raise UsageError(
                "this session was used already: make a new one, session(...), for each block"
            )
        self._was_used = True
        self._mark = FrameMark(frame)
        with ExitStack() as stack:
            stack.callback(self._forget)
            active.set_current(self)
            refuse_missing_ranks(self, self.bus.hook.launch(session=self))
            stack.push(self._part_from_ranks)
            stack.push(self.on_close)
            stack.push(self._sync_ranks)
            for entry in discovery.every("always"):
                for plugin in discovery.load(entry)(self):
                    self.bus.register(plugin, f"{entry.name}.{type(plugin).__name__}")
            self.has_begun = True
            self.steps.enter(frame)
            self.bus.hook.session_start(session=self)
            stack.callback(self.seams.close)
            # ranks that spawn has started have the arguments only
            self.adopted.announce_all(None if self.world.launched_by == "spawn" else frame)
            self.seams.refresh()
            self.bus.on_change.append(self.seams.refresh)
            stack.callback(self.bus.on_change.remove, self.seams.refresh)
            self._undo = stack.pop_all()
            self.is_inside = True

    def leave(self, error: BaseException | None) -> None:
        """End the session, and raise the job's error if it is not ``error``. All ranks call it.

        A second call does nothing.
        """
        stack, self._undo = self._undo, None
        if stack is None:
            return
        final = error if self.job is None else self.job.end_loop(error)
        for _, call in reversed(self.bus.calls("session_end")):
            stack.callback(call, self, final)
        left_by = final or error
        stack.__exit__(
            type(left_by) if left_by else None, left_by, left_by.__traceback__ if left_by else None
        )
        if final is not None and final is not error:
            raise final from None

    def leave_at_exit(self) -> None:
        """End the session at the end of the process. All ranks call it."""
        last = getattr(sys, "last_value", None)
        self.leave(None if last is self._error_before else last)

    def let_go_in_fork(self) -> None:
        """Detach in a child process that the loop has forked, such as a DataLoader worker.

        ``launch="fork"`` forks its ranks earlier, while the session is being entered.
        """
        if self.is_inside:
            self.seams.close()
            if "random" in vars(self):
                self.random.forget()
            if self.job is not None:
                self.job.let_go_in_fork()
            active.set_current(None)

    def _forget(self) -> None:
        """Release references to the caller's objects."""
        self.is_inside = self.has_begun = False
        self._mark = None
        active.set_current(None)
        self.world = dataclasses.replace(self.world, store=None, open_mesh=None)
        self.verbs.forget()
        self.adopted.clear()
        if "batches" in vars(self):
            self.batches.clear()

    def _sync_ranks(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Wait for the other ranks at the end, or raise the error that ended the job."""
        if self.job is not None:
            final = self.job.finish(error)
            if final is not None and final is not error:
                raise final from None

    def _part_from_ranks(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self.job is not None:
            self.job.part(error)
            if self.job.ends_with_block:
                active.set_current(None)
                self.job.end_process(error)


def refuse_missing_ranks(session: Context, answer: World | None) -> None:
    """Raise UsageError if the session should have several ranks and has not got them.

    The call or a launcher's variables ask for several ranks, or ``answer`` does, the world that the
    strategy returned for ``launch``.
    """
    asked = max(session.launcher.ranks_asked_for, 1 if answer is None else answer.world_size)
    strategy = session.options["strategy"]
    if session.world_size > 1 or asked == 1:
        return
    remedy = (
        "leave strategy out"
        if strategy is None
        else "its listener to `launch` returns session.start_ranks()"
    )
    name = strategy if isinstance(strategy, str | None) else type(strategy).__name__
    raise UsageError(
        f"{asked} ranks are asked for, and strategy={name!r} starts and joins none: {remedy}"
    )
