"""Ends the job after ``freeze_timeout`` if a rank is frozen; live ranks end the frozen one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from torchbus._launch.frozen.neighbours import Neighbours
from torchbus._launch.frozen.pulse import Pulse
from torchbus._launch.frozen.standstill import Standstill
from torchbus._launch.request import Request
from torchbus._launch.watch.failure import Failure
from torchbus._launch.watch.fair import FairClock
from torchbus._launch.watch.say import say
from torchbus._ranks.world import SharedStore, World
from torchbus.errors import RankFailed

REMEDY = "If a rank may be away for so long, pass freeze_timeout=seconds, or math.inf"
LOST = (
    "its process has gone without a message: SIGKILL killed it (the kernel sends one if memory is"
    " short), or native code ended it"
)
OWN = ("session", "fork", "spawn")


class Freeze:
    """Watches other ranks for signs of life.

    A rank watches the rank after itself and, once that is silent, those of its own host. So if
    several ranks freeze, a live rank watches at least one of them.

    ``waited()``: returns the workers that this rank's main thread waits for, and their progress.
    ``parent_pid``: the process id of the rank that started this one, or None.
    """

    def __init__(
        self,
        store: SharedStore,
        world: World,
        request: Request,
        waited: Callable[[], tuple[list[int], object]],
        parent_pid: int | None,
    ) -> None:
        self._store = store
        self._world = world
        self._rank = world.rank
        self._hang_timeout_s, self._freeze_timeout_s = (
            request.hang_timeout_s,
            request.freeze_timeout_s,
        )
        self._waited = waited
        self._parent_pid = parent_pid
        self._told = False
        first = world.rank - world.local_rank
        local = range(first, min(first + world.local_world_size, world.world_size))
        clock = FairClock()
        following = (world.rank + 1) % world.world_size
        heard = sorted({*local, following} - {world.rank})
        self._pulse = Pulse(store, world.rank, following, heard, clock, request.freeze_timeout_s)
        self._standstill = Standstill(clock, request.freeze_timeout_s)
        self.neighbours = Neighbours(store, world.rank, len(local))
        self.end_workers = self._standstill.end_workers

    def beat(self) -> None:
        """Show that this rank lives, and check whether it stands still.

        Call it often, from one thread.
        """
        # if the store has gone, those who need it report that
        with contextlib.suppress(RuntimeError):
            self.neighbours.meet()
            if self._pulse.beat():
                self._standstill.look(*self._waited())

    def look(self) -> Failure | None:
        """Return the failure of a frozen rank, if there is one.

        It may be this rank, if its main thread or a worker stands still. Its guard still lives, so
        this rank ends by itself.
        """
        for rank in self._pulse.silent():
            if self.has_left(rank) or self.neighbours.is_debugged(rank):
                self._pulse.hear_anew(rank)
            else:
                return Failure(
                    rank,
                    f"no sign of life for {self._limit()}: {self.neighbours.words(rank)}. {REMEDY}",
                    frozen=True,
                )
        return (
            Failure(self._rank, f"{self.stands}, for {self._limit()}. {REMEDY}")
            if self.stands
            else None
        )

    def lost(self) -> Failure | None:
        """Return the failure of a rank of this host whose process ended before it left, if any."""
        for rank in self.neighbours.gone():
            with contextlib.suppress(RuntimeError):  # the store has gone with it
                if self.has_left(rank):
                    continue
            return Failure(rank, LOST)
        return None

    @property
    def stands(self) -> str:
        """What of this rank stands still, in words; "" if nothing does."""
        return self._standstill.found

    def end(self, rank: int, summary: str) -> None:
        """End a frozen rank if it is on this host, and other frozen ranks of this host with it.

        None of them could leave by itself.
        """
        silent = [other for other in self._pulse.silent(part=0.5) if not self.has_left(other)]
        self._end_all({rank, *silent}, summary)

    def away(self, seconds: float) -> RankFailed | None:
        """Return the error for a store that has not answered for so many seconds, or None.

        It does not ask the store itself, so any thread can call it.
        """
        if self.neighbours.is_debugged(0):
            return None
        summary = (
            f"rank 0 (or torchrun), which serves the store, has not answered for {seconds:.0f} s:"
            f" {self.neighbours.words(0)}"
        )
        if seconds > min(self._hang_timeout_s, self._freeze_timeout_s) and not self._told:
            self._told = True
            self._say_once(f"torchbus: {summary}")
        if seconds <= self._freeze_timeout_s:
            return None
        self._end_all(set(), summary)
        return RankFailed(f"{summary}. {REMEDY}")

    def has_left(self, rank: int) -> bool:
        return bool(self._store.check([f"left/{rank}"]))

    def _end_all(self, ranks: set[int], summary: str) -> None:
        """End these ranks and all stopped ranks of this host, and print why.

        If one of them is this rank's parent, the text goes to the parent's stderr. Under a
        launcher, one rank prints it first, because the launcher may end this rank, too.
        """
        stopped = {rank for rank in self.neighbours.found if self.neighbours.is_stopped(rank)}
        ends = {*ranks, *stopped} & {*self.neighbours.found} - {self._rank}
        first = min({self._rank, *self.neighbours.found} - ends)
        for rank in sorted(ends):
            text = f"torchbus: rank {rank} is ended by rank {self._rank}: {summary}"
            if self._world.launched_by not in OWN and self._rank == first:
                say(text)
            self.neighbours.end(rank, text if self._is_parent(rank) else "")

    def say(self, text: str) -> None:
        """Print a text that the user sees; a started rank writes it to its parent's stderr."""
        parent = next(
            (process for rank, process in self.neighbours.found.items() if self._is_parent(rank)),
            None,
        )
        if parent is None:
            say(text)
        else:
            parent.tell(text)

    def _say_once(self, text: str) -> None:
        """Print a text that all ranks of this host would print; only one of them does."""
        others = [rank for rank in self.neighbours.found if not self._is_parent(rank)]
        if self._parent_pid is None or self._rank < min(others, default=self._rank + 1):
            self.say(text)

    def _is_parent(self, rank: int) -> bool:
        return rank in self.neighbours.found and self.neighbours.found[rank].pid == self._parent_pid

    def _limit(self) -> str:
        return f"{self._freeze_timeout_s:g} s (freeze_timeout)"
