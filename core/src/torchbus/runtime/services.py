"""Interfaces of the services that packages provide: launcher, job, batches, random streams.

Each is an entry point of the group ``torchbus.service``, made from the session's context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, Protocol

import torch

from torchbus.bus import discovery
from torchbus.patches.loaders import Origin
from torchbus.world import SharedStore, World


class JobService(Protocol):
    """A rank's link to the others. A world of one has none.

    ``waiting``: the synchronisation that the main thread waits in, as words and numbers, or None.
    ``backwards``: how many synchronised backwards this rank has made. ``launch_rule``: why the
    session chose this form of launch. ``ends_with_block``: the session launched this process, which
    ends where the block ends. ``evaluates``: whether the loop evaluates now.
    """

    waiting: tuple[object, ...] | None
    backwards: int
    launch_rule: str
    ends_with_block: bool
    evaluates: Callable[[], bool]

    @property
    def world(self) -> World: ...
    @property
    def is_ending(self) -> bool:
        """Whether this rank has a reason to stop, such as the failure of another rank."""

    @property
    def position(self) -> tuple[int, int]:
        """How many synchronised backwards, and how many collectives, this rank has begun."""

    def wait_in(self, *label: object) -> None:
        """Record that the main thread is about to wait for the other ranks in a synchronisation."""

    def go_on(self) -> None:
        """Record that the main thread no longer waits."""

    def count_backward(self) -> None:
        """Count one more synchronised backward."""

    def on_release(self, release: Callable[[], None]) -> None:
        """Register how to end the collectives of a process group that a plugin has made."""

    def leave_signals(self, numbers: set[int]) -> None:
        """Leave these signals to a plugin that handles them; an empty set takes them back."""

    def stop_for(self, error: BaseException) -> None:
        """End the job for an error that the loop is about to raise, even if the loop catches it."""

    def end_loop(self, error: BaseException | None) -> BaseException | None:
        """Wait until the loops of all ranks have ended; return the error by which they end."""

    def wait_until(
        self, met: Callable[[SharedStore], bool], seconds: float, asks: bool = True
    ) -> bool:
        """Poll until ``met()``, without a collective; return False after a timeout."""

    def asks_rank0(self) -> Iterator[str]:
        """Ask rank 0 where it is; yield how it has passed the place where this rank is, or ""."""

    def note(self, text: str, *, if_well: bool = False) -> None:
        """Let rank 0 write a line, ``if_well`` once the ranks have gone on together."""

    def finish(self, error: BaseException | None) -> BaseException | None:
        """Wait for the other ranks at the end; return the error that this rank must raise."""

    def let_go_in_fork(self) -> None:
        """Detach from the job in a child process that the loop has forked."""

    def part(self, error: BaseException | None) -> None:
        """Leave the job."""

    def end_process(self, error: BaseException | None) -> None:
        """End the process of a rank that the session launched."""


class LauncherService(Protocol):
    """Starts or joins the ranks of a session."""

    @property
    def device(self) -> torch.device:
        """The device of this process before the ranks are there."""

    @property
    def timeout(self) -> timedelta:
        """How long torch waits before it gives up a collective."""

    @property
    def ranks_asked_for(self) -> int:
        """How many ranks the call names or, with a strategy, a launcher's variables."""

    def has_many_ranks(self) -> bool:
        """Whether the call, or a launcher, asks for more than one rank."""

    def refuse_prompt(self) -> None:
        """Raise UsageError where more code may follow that the other ranks never see."""

    def decorate(self, *call: Any) -> None:
        """Remember the call of the decorated function that the session belongs to."""

    def start(self, launch: str | None) -> JobService:
        """Join or start the ranks. ``launch``: another form than the one that the call names."""


class BatchService(Protocol):
    """Tracks batches from loaders until they are freed."""

    current: tuple[Any, ...]

    @property
    def only_evaluate(self) -> bool:
        """Whether only batches of evaluation feed this backward."""

    @property
    def count(self) -> int:
        """How many batches were taken."""

    @property
    def fetched(self) -> list[torch.Tensor]:
        """The tensors of all batches that wait in wrappers."""

    @property
    def together(self) -> list[Any]:
        """The batches that feed this backward, and those of other loaders taken with them."""

    @property
    def at_hand(self) -> tuple[Any, ...]:
        """The batches that the loop works on now, before and after their backward."""

    def follow(self, dependent: str = "") -> None:
        """Begin to track. ``dependent``: what goes wrong if a batch can't be identified."""

    def record(self, batch: Any) -> None:
        """Track a batch that the loop, or a wrapper of its loader, was handed."""

    def moved(self, before: object, after: object) -> None:
        """A wrapper of a loader hands on ``after``, a copy of the batch ``before``."""

    def waiting(self, origin: Origin) -> int:
        """Return how many batches of a pass wait in a wrapper: taken, alive, and not used."""

    def held(self, origin: Origin) -> int:
        """Return how many other batches of a pass are alive, used or not."""

    def may_have_been_used(self, loader: object) -> bool:
        """Whether a batch of the loader came before a backward, without enough evidence."""

    def clear(self) -> None:
        """Drop all batches."""


class RandomService(Protocol):
    """Switches the process's generators between a common stream and one of this rank."""

    before_split: Callable[[], object]

    @property
    def current(self) -> str:
        """The name of the stream in use: "order", "own" or "evaluation"."""

    @property
    def now(self) -> int:
        """A number that is equal on all ranks at the same place of the loop."""

    @property
    def is_split(self) -> bool:
        """Whether this rank draws from a separate stream in training."""

    @property
    def drew_in_evaluation(self) -> bool:
        """Whether anything was drawn in evaluation since ``mark``."""

    @property
    def draws_in_evaluation(self) -> bool:
        """Whether the stream of evaluation is in use, and was drawn from."""

    def mark(self) -> None: ...
    def split(self, rank: int) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def draw_apart(self, generators: Iterable[object], rank: int) -> None: ...
    def pass_ends(self) -> None: ...
    def pass_begins(self) -> None: ...
    def goes_on(self) -> None: ...
    def forget(self) -> None: ...
    def use(self, stream: str) -> None: ...
    def state(self) -> dict[str, object]: ...
    def load(self, state: dict[str, Any]) -> None: ...
    def load_common(self, state: dict[str, Any], rank: int, world_size: int) -> None: ...
    def order(self) -> AbstractContextManager[None]: ...
    def script_alike(self) -> AbstractContextManager[None]: ...


class Owner(Protocol):
    """A session that has services."""

    @property
    def options(self) -> Mapping[str, Any]: ...


def make(name: str, session: Owner) -> Any:
    """Make a service. Raises PluginNotInstalled, with the pip command, if no package has it."""
    return discovery.load(discovery.find("service", name))(session)


def make_launcher(session: Owner) -> LauncherService:
    """Make the launcher, or one for a single process if no package brings one."""
    launcher: LauncherService
    if "launcher" in discovery.installed("service"):
        launcher = make("launcher", session)
    else:
        launcher = SingleProcess(session)
    return launcher


class SingleProcess:
    """The launcher of a session that has no other: this process is the only rank."""

    timeout = timedelta(minutes=30)
    ranks_asked_for = 1

    def __init__(self, session: Owner) -> None:
        wanted = session.options
        if wanted["num_nodes"] != 1 or wanted["devices"] not in ("auto", 0, 1, "0", "1"):
            raise discovery.missing("strategy", discovery.distributions("default")["strategy"])
        is_there = torch.accelerator.is_available() and wanted["accelerator"] != "cpu"
        found = torch.accelerator.current_accelerator() if is_there else None
        kind = None if found is None else found.type
        if wanted["accelerator"] not in ("auto", "cpu", "gpu", kind):
            raise discovery.missing("strategy", discovery.distributions("default")["strategy"])
        self.device = torch.device("cpu") if kind is None else torch.device(kind, 0)

    def has_many_ranks(self) -> bool:
        return False

    def refuse_prompt(self) -> None:
        """One rank sees what is typed later."""

    def decorate(self, *call: Any) -> None:
        """There is no other rank that would make the call."""

    def start(self, launch: str | None) -> JobService:
        raise discovery.missing("strategy", discovery.distributions("default")["strategy"])
