"""Checks that each rank's guard repeats: has another rank failed, ended or disappeared?"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence

from torchbus.errors import RankFailed, RanksDiverged

from torchbus_launch import compat, failure
from torchbus_launch.broadcast_log import ENDED, FAILED, LOOPS_ENDED, BroadcastLog
from torchbus_launch.children import Child
from torchbus_launch.ending import EndCounts
from torchbus_launch.failure import Failure
from torchbus_launch.freeze import Freeze
from torchbus_launch.hang import HangWatch
from torchbus_launch.rank_position import END, RankPosition
from torchbus_launch.store import SealedStore

LOOK = "Look at its output, and in `dmesg` for a process that the kernel has killed"
FIRST_ENDS_WITHIN_S = 3.0


def store_lost(why: str = "") -> RankFailed:
    return RankFailed(f"rank 0, which serves the store, has gone{why}. {LOOK}")


class HealthChecks:
    """Finds this rank's reason to stop; ``look()`` returns it, or None.

    ``store`` is a connection that nothing else uses.
    """

    def __init__(
        self,
        store: SealedStore,
        log: BroadcastLog,
        rank: int,
        place: Callable[[], RankPosition],
        children: Sequence[Child],
        parent_pid: int | None,
        freeze: Freeze,
        hang: HangWatch,
    ) -> None:
        self._store = store
        self._log = log
        self._rank = rank
        self._place = place
        self._children = children
        self._parent_pid = parent_pid
        self._freeze = freeze
        self._hang = hang
        self.found: Failure | None = None
        """The failure that ends this rank, once it is known."""
        # whether the session started the ranks, which then know more about how others ended
        self._is_ours = bool(children) or parent_pid is not None

    def look(self) -> BaseException | None:
        if self._parent_pid is not None and os.getppid() != self._parent_pid:
            return RankFailed(f"rank 0 has gone. {LOOK}")
        if self._log.lost:
            return store_lost()
        try:
            self.found = found = self._recorded() or self.dead_rank() or self._frozen()
            if found is not None and found.frozen:
                self._freeze.end(found.rank, found.summary)
        except RuntimeError:
            return store_lost()
        if found is not None and (found.rank != self._rank or found.frozen or self._freeze.stands):
            return found.as_error()
        return self._ended_peer() or self._deadlock()

    def publish(self, store: SealedStore, found: Failure) -> Failure:
        """Record a failure over the caller's connection; return the failure recorded first."""
        return failure.publish(store, self._log, found)

    def _recorded(self) -> Failure | None:
        return failure.read(self._store) if self._log.has(FAILED) else None

    def report(self, error: BaseException) -> None:
        """Record an error of this rank, unless a failure is recorded already."""
        with contextlib.suppress(RuntimeError):
            self.found = self.publish(self._store, failure.of(self._rank, error))

    def report_signal(self, number: int) -> None:
        """Record that this rank got a signal that ends it."""
        with contextlib.suppress(RuntimeError):
            self.publish(self._store, received(self._rank, number))

    def known_failure(self) -> Failure | None:
        """Return why this rank lost a connection, if that is known by now.

        Raises RuntimeError if the store has gone and there is no other evidence.
        """
        try:
            return failure.read(self._store) or self.dead_rank()
        except RuntimeError:
            if self._is_ours:
                raise
            # the store may disappear a moment before the process that serves it
            return self.lost_rank()

    def dead_rank(self) -> Failure | None:
        """Return the failure of a rank whose process has ended, if there is one.

        Such a rank is a child of this process that ended with an error, or a launcher's rank on
        this host whose process has gone.
        """
        for child in self._children:
            status = child.poll()
            if status:
                text = child.last_errors()
                return self.publish(
                    self._store, Failure(child.rank, f"the process {child.describe_exit()}", text)
                )
        return self.lost_rank()

    def lost_rank(self) -> Failure | None:
        """Return the failure of a launcher's rank on this host whose process has gone, if any."""
        lost = None if self._is_ours else self._freeze.lost()
        if lost is not None:
            with contextlib.suppress(RuntimeError):  # the store has gone with it
                return self.publish(self._store, lost)
        return lost

    def let_first_end(self) -> None:
        """Wait a moment until the rank that failed first has ended, so that its traceback comes
        first, and a launcher names that rank.

        Ranks that the session started don't wait, because rank 0 prints for all.
        """
        if self.found is None or self.found.diverged or self._is_ours:
            return
        deadline = time.monotonic() + FIRST_ENDS_WITHIN_S
        while (
            self._freeze.local_processes.is_running(self.found.rank) and time.monotonic() < deadline
        ):
            time.sleep(0.02)

    def _frozen(self) -> Failure | None:
        found = self._freeze.look()
        return self.publish(self._store, found) if found is not None else None

    def _deadlock(self) -> BaseException | None:
        try:
            error = self._hang.look()
        except RuntimeError:
            return store_lost()
        if error is not None:
            self.publish(self._store, failure.of(self._rank, error))
        return error

    def _ended_peer(self) -> BaseException | None:
        """Return an error if a rank's loop ended before the synchronisation that this one is in."""
        if self._log.has(LOOPS_ENDED):
            return None  # all ranks will reach the synchronisation at the end
        ends = [EndCounts.read(text) for text in self._log.all(ENDED)]
        place, begun = self._place() if ends else None, compat.begun()
        if place is None or place.waits_in in ("", END):
            return None
        peer = next((end for end in ends if end.never_comes_to(place, begun)), None)
        if peer is None:
            return None
        error = self._left_source(peer.rank, peer.backwards)
        self.publish(self._store, failure.of(self._rank, error))
        return error

    def _left_source(self, rank: int, backwards: int) -> RanksDiverged:
        place = self._place()
        return RanksDiverged(
            f"rank {rank} ended its loop after {backwards} backward calls, while rank {self._rank}"
            f" waits in {place.waits_in or 'a collective'} at {place.line}: all ranks must make the"
            " same number of them. A loop that stops by a value of one rank (such as a loss read"
            " before backward) must share it: read the loss after backward, or use"
            " s.reduce(number). A loop whose episodes differ in length needs strategy='dp'"
        )


def received(rank: int, number: int) -> Failure:
    """Make the failure that other ranks get for a signal on this rank."""
    return Failure(rank, f"it received {signal.Signals(number).name}")
