"""Which failure ended the job, and what each rank raises."""

from __future__ import annotations

import contextlib
import signal
import sys
import time

from torchbus._launch.frozen.freeze import LOST
from torchbus._launch.store import polling
from torchbus._launch.watch import failure
from torchbus._launch.watch.failure import Failure
from torchbus._launch.watch.fair import FairClock
from torchbus._launch.watch.guard import Guard
from torchbus._launch.watch.lookout import GONE, Lookout, received
from torchbus._launch.watch.say import say
from torchbus._ranks.world import SharedStore, World
from torchbus.errors import RankFailed, RanksDiverged


class Settling:
    """Settles what a rank that ends with an error raises and prints."""

    def __init__(self, world: World, store: SharedStore, guard: Guard, lookout: Lookout) -> None:
        self._world = world
        self._store = store
        self._guard = guard
        self._lookout = lookout

    def settle(self, error: BaseException) -> BaseException:
        """Find the first failure, publish it, end the collectives, and return what to raise.

        Rank 0 prints the traceback of the rank that failed first.
        """
        signal_seen = self._signal(error)
        if failure.is_consequence(error) and self._guard.reason is not None:
            error = self._guard.reason
        mine = (
            received(self._world.rank, signal_seen)
            if signal_seen
            else failure.of(self._world.rank, error)
        )
        with contextlib.suppress(RuntimeError):
            first = self._first_failure(error, mine)
            self._guard.release()
            if first.summary == LOST:
                # print now: a launcher that sees a killed rank ends all ranks
                say(f"torchbus: {first.as_error()}")
            if first.diverged and failure.is_consequence(error) and not signal_seen:
                # this rank's own guard may have found it, and a peer reacted to it first
                return first.as_error()
            if first.rank == self._world.rank or signal_seen or first.summary == mine.summary:
                return _signalled(signal_seen, error)
            return self._of_another(first, error)
        self._guard.release()
        return RankFailed(GONE) if failure.is_consequence(error) else error

    def _signal(self, error: BaseException) -> int | None:
        """Return the signal that this rank has received, if any."""
        number = self._guard.seen_signal
        if number is None and isinstance(error, KeyboardInterrupt):
            number = signal.SIGINT  # Python's handler may be faster than the guard
        around = error.__context__
        if number and around is not None and failure.is_consequence(around):
            # the guard ended the collective to let Python deliver the signal
            error.__suppress_context__ = True
        return number

    def _of_another(self, first: Failure, error: BaseException) -> BaseException:
        """Return what this rank raises because another one has failed."""
        if isinstance(error, KeyboardInterrupt | SystemExit):
            return error
        if self._world.is_main and first.traceback:
            self._show(first)
        return error if isinstance(error, RankFailed | RanksDiverged) else first.as_error()

    def _first_failure(self, error: BaseException, mine: Failure) -> Failure:
        clock, within_s = FairClock(0.1), 3.0 if failure.is_consequence(error) else 0.0
        pause_s = polling.pause_s(0.02, self._world.world_size)
        found = (
            self._lookout.lost_rank()
            if self._guard.reason is None and (within_s or isinstance(error, SystemExit))
            else None
        )
        while found is None and clock.seconds() < within_s:
            found = self._lookout.known_failure()
            time.sleep(pause_s)
        return found or self._lookout.publish(self._store, mine)

    def _show(self, first: Failure) -> None:
        stream = sys.__stderr__ or sys.stderr
        sys.stdout.flush()
        lines = first.traceback.rstrip().splitlines()
        print("\n".join(f"[rank {first.rank}] {line}" for line in lines), file=stream, flush=True)


def _signalled(number: int | None, error: BaseException) -> BaseException:
    """Return the exception for a signal that came while the main thread could not receive it."""
    if number is None or isinstance(error, KeyboardInterrupt | SystemExit):
        return error
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
