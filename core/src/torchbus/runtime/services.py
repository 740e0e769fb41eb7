"""Interfaces of the services that packages provide: launcher, job, batches, random streams.

Each is an entry point of the group ``torchbus.service``, made from the session's context. The
package documents the methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, Protocol

import torch

from torchbus.bus import discovery
from torchbus.patches.loaders import Origin
from torchbus.world import SharedStore, World


class JobService(Protocol):
    """A rank's link to the others. A world of one has none.

    ``waiting`` is the synchronisation in which the main thread waits, as words and numbers, or
    None. ``backwards`` counts the synchronised backwards of this rank. ``launch_rule`` says why the
    session chose this form of launch. ``ends_with_block`` is True if the session launched this
    process, which then ends where the block ends. ``evaluates`` returns whether the loop evaluates.
    ``begin_alike`` is whether all ranks begin the same number of collectives of the main group.
    """

    waiting: tuple[object, ...] | None
    backwards: int
    launch_rule: str
    ends_with_block: bool
    evaluates: Callable[[], bool]
    begin_alike: bool

    @property
    def world(self) -> World: ...
    @property
    def is_ending(self) -> bool: ...
    @property
    def position(self) -> tuple[int, int]: ...
    def wait_in(self, *label: object) -> None: ...
    def go_on(self) -> None: ...
    def count_backward(self) -> None: ...
    def on_release(self, release: Callable[[], None]) -> None: ...
    def leave_signals(self, numbers: set[int]) -> None: ...
    def stop_for(self, error: BaseException) -> None: ...
    def end_loop(self, error: BaseException | None) -> BaseException | None: ...
    def wait_until(
        self, met: Callable[[SharedStore], bool], seconds: float, asks: bool = True
    ) -> bool: ...
    def asks_rank0(self) -> Iterator[str]: ...
    def note(self, text: str, *, if_well: bool = False) -> None: ...
    def finish(self, error: BaseException | None) -> BaseException | None: ...
    def let_go_in_fork(self) -> None: ...
    def part(self, error: BaseException | None) -> None: ...
    def end_process(self, error: BaseException | None) -> None: ...


class BatchService(Protocol):
    """Tracks batches from loaders until they are freed."""

    current: tuple[Any, ...]

    @property
    def count(self) -> int: ...
    @property
    def fetched(self) -> list[torch.Tensor]: ...
    @property
    def together(self) -> list[Any]: ...
    @property
    def at_hand(self) -> tuple[Any, ...]: ...
    def follow(self, dependent: str = "") -> None: ...
    def record(self, batch: Any) -> None: ...
    def moved(self, before: object, after: object) -> None: ...
    def waiting(self, origin: Origin) -> int: ...
    def held(self, origin: Origin) -> int: ...
    def may_have_been_used(self, loader: object) -> bool: ...
    def clear(self) -> None: ...


class RandomService(Protocol):
    """Switches the process's generators between a common stream and one of this rank."""

    before_split: Callable[[], object]

    @property
    def current(self) -> str: ...
    @property
    def now(self) -> int: ...
    @property
    def is_split(self) -> bool: ...
    @property
    def drew_in_evaluation(self) -> bool: ...
    @property
    def loses_draws(self) -> bool: ...
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


def make(name: str, session: object, otherwise: Callable[[Any], object] | None = None) -> Any:
    """Make a service, or call ``otherwise`` if no package provides it.

    Without ``otherwise``, raises PluginNotInstalled, with the pip command.
    """
    if otherwise is not None and name not in discovery.installed("service"):
        return otherwise(session)
    return discovery.load(discovery.find("service", name))(session)


class Launcher:
    """Starts or joins the ranks of a session. This one has a single rank: this process.

    A package that starts other ranks subclasses it.
    """

    def __init__(self, session: Any) -> None:
        wanted = session.options
        is_there = torch.accelerator.is_available() and wanted["accelerator"] != "cpu"
        found = torch.accelerator.current_accelerator() if is_there else None
        kind = None if found is None else found.type
        if (
            wanted["num_nodes"] != 1
            or wanted["devices"] not in ("auto", 0, 1, "0", "1")
            or wanted["accelerator"] not in ("auto", "cpu", "gpu", kind)
        ):
            raise discovery.missing("strategy", discovery.distributions("default")["strategy"])
        self._device = torch.device("cpu") if kind is None else torch.device(kind, 0)

    @property
    def device(self) -> torch.device:
        """The device of this process before the ranks are there."""
        return self._device

    @property
    def timeout(self) -> timedelta:
        """How long a rank waits in a collective before the job ends."""
        return timedelta(minutes=30)

    @property
    def ranks_asked_for(self) -> int:
        """The number of ranks in the call or, with a strategy, in a launcher's variables."""
        return 1

    def has_many_ranks(self) -> bool:
        """Whether the call, or a launcher, asks for more than one rank."""
        return False

    def refuse_prompt(self) -> None:
        """Raise UsageError where more code may follow that the other ranks never see."""

    def decorate(self, *call: Any) -> None:
        """Remember the call of the decorated function that the session belongs to."""

    def start(self, launch: str | None) -> JobService:
        """Join or start the ranks. ``launch`` overrides the form that the call names."""
        raise discovery.missing("strategy", discovery.distributions("default")["strategy"])
