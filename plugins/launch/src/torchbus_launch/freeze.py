"""Detects frozen ranks by their heartbeats in the store, and ends those of this host."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Sequence

from torchbus.errors import RankFailed
from torchbus.world import World

from torchbus_launch import stall
from torchbus_launch.broadcast_log import FairClock
from torchbus_launch.failure import Failure
from torchbus_launch.request import LaunchRequest
from torchbus_launch.stall import ENDED, STOPPED, Process, StallDetector
from torchbus_launch.store import SealedStore
from torchbus_launch.terminal import say

FIRST_PAUSE_S, PROCESSES_LONGEST_PAUSE_S = 0.1, 30.0


class LocalProcesses:
    """The other ranks of this host, found through the store, where each host has a list.

    ``at_most`` is the number of ranks that may be on this host, including this one.
    """

    def __init__(self, store: SealedStore, rank: int, at_most: int) -> None:
        self._store = store
        self._mine = stall.this()
        self._at_most = at_most if self._mine.host else 0
        self._discovers_next_s, self._pause_s = 0.0, FIRST_PAUSE_S
        self._listed = 0
        self.found: dict[int, Process] = {}
        if self._mine.host:
            self._enter(json.dumps([rank, self._mine]))

    def _enter(self, mine: str) -> None:
        """Put this rank at the end of its host's list, and read the entries before it."""
        while (there := self._store.compare_set(self._entry(), "", mine)) != mine.encode():
            self._take(there)
        self._listed += 1

    def discover(self) -> None:
        """Find ranks that have joined since the last call; call it often."""
        if self._listed >= self._at_most or time.monotonic() < self._discovers_next_s:
            return
        self._discovers_next_s = time.monotonic() + self._pause_s
        self._pause_s = min(self._pause_s * 1.5, PROCESSES_LONGEST_PAUSE_S)
        while self._listed < self._at_most and (there := self._store.read(self._entry())):
            self._take(there)

    def _take(self, entry: bytes) -> None:
        rank, other = json.loads(entry)
        self.found[rank] = Process(*other)
        self._listed += 1

    def _entry(self) -> str:
        return f"processes/{self._mine.host}/{self._listed}"

    def ended(self) -> list[int]:
        """Return the ranks whose processes have ended."""
        return [rank for rank, other in self.found.items() if other.state() in ENDED]

    def is_running(self, rank: int) -> bool:
        """Return whether this is another rank of this host whose process has not ended."""
        return rank in self.found and self.found[rank].state() not in ENDED

    def is_debugged(self, rank: int) -> bool:
        return rank in self.found and self.found[rank].is_debugged()

    def is_stopped(self, rank: int) -> bool:
        return rank in self.found and self.found[rank].state() == STOPPED

    def describe(self, rank: int) -> str:
        """Return the likely reason for a rank's silence."""
        if rank not in self.found:
            return (
                f"rank {rank} is stopped, in native code that holds Python's lock, or its machine"
                " is cut off"
            )
        how = (
            "is stopped by a signal"
            if self.is_stopped(rank)
            else "is in native code that holds Python's lock"
        )
        return f"its process {self.found[rank].pid} {how}"

    def end(self, rank: int, text: str) -> None:
        """End a rank's process; first write ``text`` to its stderr."""
        other = self.found.pop(rank, None)
        if other is not None:
            if text:
                other.write_stderr(text)
            other.end({neighbour.pid for neighbour in self.found.values()})


PULSE_LONGEST_PAUSE_S = 30.0  # for three requests: less than one a second from a host's ranks
HEARS_ALL_AFTER = 0.4


class Pulse:
    """Raises this rank's heartbeat count in the store, and reads the count of the next rank.

    Once a rank was silent for a part of ``freeze_timeout``, the counts of all ranks in ``received``
    are read. So usually, the number of requests does not depend on the number of ranks.

    A stopped process, or one whose native code holds Python's lock, runs no Python thread and so
    sends no heartbeat. A slow process still does.
    """

    def __init__(
        self,
        store: SealedStore,
        rank: int,
        next_rank: int,
        received: Sequence[int],
        clock: FairClock,
        freeze_timeout_s: float,
    ) -> None:
        self._store = store
        self._rank = rank
        self._freeze_timeout_s = freeze_timeout_s
        self._next_rank = next_rank
        self._pause_s = min(max(freeze_timeout_s / 20, 0.1), PULSE_LONGEST_PAUSE_S)
        self._clock = clock
        self._next_s = 0.0
        self._beats = 0
        self._last = dict.fromkeys(received, (0, 0.0))

    def beat(self) -> bool:
        """Raise this rank's count and read others if the pause is over. Call it often."""
        now_s = self._clock.seconds()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + self._pause_s
        self._beats += 1
        self._store.set(f"pulse/{self._rank}", str(self._beats))
        hears_all = bool(self.silent(HEARS_ALL_AFTER))
        for rank, (count, _) in self._last.items():
            if not hears_all and rank != self._next_rank:
                self._last[rank] = (count, now_s)
                continue
            received = int(self._store.read(f"pulse/{rank}") or 0)
            if received != count or received == 0:  # a rank that has not begun is not frozen
                self._last[rank] = (received, now_s)
        return True

    def hear_again(self, rank: int) -> None:
        """Restart the time of silence of a rank that is debugged, or has left."""
        self._last[rank] = (self._last[rank][0], self._clock.seconds())

    def silent(self, part: float = 1.0) -> list[int]:
        """Return the ranks that were silent for ``part * freeze_timeout``."""
        now_s = self._clock.seconds()
        return [
            rank
            for rank, (_, since_s) in self._last.items()
            if now_s - since_s > part * self._freeze_timeout_s
        ]


REMEDY = "If a rank may be away that long, pass freeze_timeout=seconds, or math.inf"
LOST = (
    "its process has gone without a message: SIGKILL killed it (the kernel sends one if memory is"
    " short), or native code ended it"
)
LAUNCHED_HERE = ("session", "fork", "spawn")


class Freeze:
    """Watches other ranks for signs of life.

    A rank watches the rank after itself and, once that is silent, all ranks of its own host. So if
    several ranks freeze, a live rank watches at least one of them.

    ``waited()`` returns the workers that this rank's main thread waits for, and their progress.
    ``parent_pid`` is the process id of the rank that started this one, or None.
    """

    def __init__(
        self,
        store: SealedStore,
        world: World,
        request: LaunchRequest,
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
        self._has_warned = False
        first = world.rank - world.local_rank
        local = range(first, min(first + world.local_world_size, world.world_size))
        clock = FairClock()
        following = (world.rank + 1) % world.world_size
        received = sorted({*local, following} - {world.rank})
        self._pulse = Pulse(store, world.rank, following, received, clock, request.freeze_timeout_s)
        self._stall = StallDetector(clock, request.freeze_timeout_s)
        self.local_processes = LocalProcesses(store, world.rank, len(local))
        self.end_workers = self._stall.end_workers

    def beat(self) -> None:
        """Send this rank's heartbeat, and check for a stall. Call it often, from one thread."""
        # if the store has gone, the checks that need it report that
        with contextlib.suppress(RuntimeError):
            self.local_processes.discover()
            if self._pulse.beat():
                self._stall.look(*self._waited())

    def look(self) -> Failure | None:
        """Return the failure of a frozen rank, if there is one.

        The failure may be this rank's, if its main thread or a worker is stalled. Then its guard
        still runs and ends it.
        """
        for rank in self._pulse.silent():
            if self.has_left(rank) or self.local_processes.is_debugged(rank):
                self._pulse.hear_again(rank)
            else:
                return Failure(
                    rank,
                    f"no sign of life for {self._limit()}: {self.local_processes.describe(rank)}."
                    f" {REMEDY}",
                    frozen=True,
                )
        return (
            Failure(self._rank, f"{self.stands}, for {self._limit()}. {REMEDY}")
            if self.stands
            else None
        )

    def lost(self) -> Failure | None:
        """Return the failure of a rank of this host whose process ended before it left, if any."""
        for rank in self.local_processes.ended():
            with contextlib.suppress(RuntimeError):  # the store has gone with it
                if self.has_left(rank):
                    continue
            return Failure(rank, LOST)
        return None

    @property
    def stands(self) -> str:
        """Description of what is stalled on this rank; "" if nothing is."""
        return self._stall.found

    def end(self, rank: int, summary: str) -> None:
        """End a frozen rank if it is on this host, and other frozen ranks of this host with it.

        Frozen ranks can't exit without help.
        """
        silent = [other for other in self._pulse.silent(part=0.5) if not self.has_left(other)]
        self._end_all({rank, *silent}, summary)

    def away(self, seconds: float) -> RankFailed | None:
        """Return the error for a store that has not answered for ``seconds``, or None.

        This does not use the store, so any thread can call it.
        """
        if self.local_processes.is_debugged(0):
            return None
        summary = (
            f"rank 0 (or torchrun), which serves the store, has not answered for {seconds:.0f} s:"
            f" {self.local_processes.describe(0)}"
        )
        if seconds > min(self._hang_timeout_s, self._freeze_timeout_s) and not self._has_warned:
            self._has_warned = True
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
        stopped = {
            rank for rank in self.local_processes.found if self.local_processes.is_stopped(rank)
        }
        ends = {*ranks, *stopped} & {*self.local_processes.found} - {self._rank}
        first = min({self._rank, *self.local_processes.found} - ends)
        for rank in sorted(ends):
            text = f"torchbus: rank {rank} is ended by rank {self._rank}: {summary}"
            if self._world.launched_by not in LAUNCHED_HERE and self._rank == first:
                say(text)
            self.local_processes.end(rank, text if self._is_parent(rank) else "")

    def say(self, text: str) -> None:
        """Print a text where the user sees it: a started rank writes to its parent's stderr."""
        processes = self.local_processes.found
        parents = [one for rank, one in processes.items() if self._is_parent(rank)]
        if parents:
            parents[0].write_stderr(text)
        else:
            say(text)

    def _say_once(self, text: str) -> None:
        """Print a text that all ranks of this host would print; only one of them does."""
        others = [rank for rank in self.local_processes.found if not self._is_parent(rank)]
        if self._parent_pid is None or self._rank < min(others, default=self._rank + 1):
            self.say(text)

    def _is_parent(self, rank: int) -> bool:
        return (
            rank in self.local_processes.found
            and self.local_processes.found[rank].pid == self._parent_pid
        )

    def _limit(self) -> str:
        return f"{self._freeze_timeout_s:g} s (freeze_timeout)"
