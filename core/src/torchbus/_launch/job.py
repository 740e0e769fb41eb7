"""This rank's tie to the others: the shared store, the ranks it started, and how all of them leave together."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys
import time
from collections.abc import Callable

from torchbus._launch.frozen import rest
from torchbus._launch.frozen.freeze import LOST, Freeze
from torchbus._launch.parting import end_children
from torchbus._launch.request import Request
from torchbus._launch.start.children import Child
from torchbus._launch.store.roll_call import RollCall
from torchbus._launch.store.sealed import SealedStore
from torchbus._launch.watch import failure, orphan
from torchbus._launch.watch.ended import SOME_ENDED, Ended
from torchbus._launch.watch.failure import Failure
from torchbus._launch.watch.fair import FairClock
from torchbus._launch.watch.guard import Guard, connected_to, shut
from torchbus._launch.watch.lookout import GONE, Lookout, received
from torchbus._launch.watch.place import Place, find, waited_workers
from torchbus._launch.watch.say import say
from torchbus._ranks import collectives
from torchbus._ranks.world import World
from torchbus.errors import RankFailed, RanksDiverged


class Job:
    """``waiting`` is what the main thread waits for with the other ranks, in words and numbers, or None."""

    def __init__(
        self,
        world: World,
        request: Request,
        children: list[Child] | None = None,
        ends_with_block: bool = False,
        forked: bool = False,
        parent_pid: int | None = None,
        keep: object = None,
    ) -> None:
        self.world = world
        self.ends_with_block = ends_with_block
        self.launch_rule = request.launch_rule
        self.waiting: tuple[object, ...] | None = None
        self.backwards = 0
        self._children = children or []
        self._forked = forked
        self._keep = keep
        self._print_all_ranks = request.print_all_ranks
        self._store = world.shared.within("job")
        self._ended = RollCall(self._store, "ended", world.rank, world.world_size)
        self.evaluates: Callable[[], bool] = lambda: False
        guards_store = world.shared.connection(request.timeout).within("job")
        self._freeze = Freeze(guards_store, world, request, waited_workers, parent_pid)
        self._lookout = Lookout(
            guards_store, world.rank, world.world_size, request.hang_timeout_s, self._place, self._children, parent_pid, self._freeze,
            self._rest, lambda: self.guard.beat(),
        )  # fmt: skip
        # Not its methods themselves: the connection goes in part(), and the guard may stay.
        self.guard = Guard(
            world.rank, lambda: self._lookout.look(), lambda number: self._lookout.report_signal(number),
            beat=lambda: self._freeze.beat(), away=self._away,
        )  # fmt: skip
        self.guard.on_raise(lambda: self._freeze.end_workers())
        self.guard.start()
        orphan.guarded()
        if ends_with_block and not forked:
            self._store_joined()

    @property
    def launched(self) -> int:
        """Number of ranks that this process started."""
        return len(self._children)

    def wait_in(self, *words: object) -> None:
        """The main thread is about to wait for the other ranks, in these words and numbers. Ranks that wait in different ones for ever end."""
        self.waiting = words

    def go_on(self) -> None:
        """It does not wait any more."""
        self.waiting = None

    def count_backward(self) -> None:
        """One more backward is synchronised."""
        self.backwards += 1

    def on_release(self, release: Callable[[], None]) -> None:
        """``release()`` ends collectives of a process group that a plugin has made; called from the guard's thread."""
        self.guard.on_release(release)

    def leave_signals(self, numbers: set[int]) -> None:
        """To a plugin, which handles them itself; an empty set takes them back."""
        self.guard.handled = set(numbers)

    @property
    def is_ending(self) -> bool:
        """Whether this rank has a reason to stop: another one has failed, say."""
        return self.guard.reason is not None

    def wait_until(self, met: Callable[[SealedStore], bool], seconds: float) -> bool:
        """Wait, without a collective, until a condition on the shared store is met; False after ``seconds``.

        Raises this rank's reason to stop, if one comes up meanwhile.
        """
        assert self.world.store is not None
        deadline, pause_s = time.monotonic() + seconds, 0.0005
        while not met(self.world.store):
            if self.guard.reason is not None:
                raise self.guard.reason
            if time.monotonic() > deadline:
                return False
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 0.05)
        return True

    def meet(self, error: BaseException | None) -> BaseException | None:
        """Come together with the others at the end; returns the error that this rank has to raise, if any.

        Without an error: waits until every rank is at its end. With one: tells it, and ends the collectives in
        which others wait.
        """
        if error is None or (isinstance(error, SystemExit) and not error.code):
            error = self._wait_for_all_ends() or error
        self.guard.leaving = True
        if error is None or (isinstance(error, SystemExit) and not error.code):
            return error
        return self._settle(error)

    def part(self, error: BaseException | None) -> None:
        """Let go of the others: wait for the ranks that this one started, and stop the guard."""
        self.guard.leaving = True
        end_children(self._children, in_peace=error is None)
        self.guard.stop_looking()  # at the store, which goes once all have said that they left
        with contextlib.suppress(RuntimeError):
            self._let_all_leave(error)
        self.guard.stop()
        self.world.shared.close()  # rank 0's port with it
        self.world = dataclasses.replace(self.world, store=None)
        del self._store, self._ended, self._lookout, self._freeze  # with the guard's connection

    def end_process(self, error: BaseException | None) -> None:
        """End a rank that the session started, where its block ends."""
        if self._forked:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(0 if error is None else 1)
        if error is None:
            raise SystemExit(0)

    def _store_joined(self) -> None:
        RollCall(self.world.shared, "joined", self.world.rank, self.world.world_size).say()

    def _wait_for_all_ends(self) -> BaseException | None:
        try:
            self._ended.say(Ended(self.backwards, collectives.begun()).written())
            self._store.set(SOME_ENDED, "")
            self.wait_until(lambda _: self._ended.is_complete(), float("inf"))
        except (RankFailed, RanksDiverged, KeyboardInterrupt, SystemExit) as error:
            return error
        except RuntimeError as lost:
            return self.guard.reason or RankFailed(f"{GONE}: {lost}")
        return None

    def _settle(self, error: BaseException) -> BaseException:
        """Find out which failure came first, make it known, end the collectives, and show it where it is to be shown."""
        signal_seen = self.guard.seen_signal
        if signal_seen is None and isinstance(error, KeyboardInterrupt):
            signal_seen = signal.SIGINT  # Python's handler may be faster than the guard
        if signal_seen and error.__context__ is not None and failure.is_consequence(error.__context__):
            error.__suppress_context__ = True  # the guard ended the collective, so that the signal was heard
        if failure.is_consequence(error) and self.guard.reason is not None:
            error = self.guard.reason
        mine = received(self.world.rank, signal_seen) if signal_seen else failure.of(self.world.rank, error)
        with contextlib.suppress(RuntimeError):
            first = self._first_failure(error, mine)
            self.guard.release()
            if first.summary == LOST:
                say(f"torchbus: {first.as_error()}")  # at once: a launcher of its own ends all ranks where one was killed
            if first.diverged and failure.is_consequence(error) and not signal_seen:
                return first.as_error()  # which this rank's own guard may have found, and a peer has heard of it sooner
            if first.rank == self.world.rank or signal_seen or first.summary == mine.summary:
                return _signalled(signal_seen, error)
            if isinstance(error, KeyboardInterrupt | SystemExit):
                return error
            if self.world.is_main and first.traceback:
                self._show(first)
            return error if isinstance(error, RankFailed | RanksDiverged) else first.as_error()
        self.guard.release()
        return RankFailed(GONE) if failure.is_consequence(error) else error

    def _first_failure(self, error: BaseException, mine: Failure) -> Failure:
        clock, within_s = FairClock(0.1), 3.0 if failure.is_consequence(error) else 0.0
        found = self._lookout.lost_rank() if self.guard.reason is None and (within_s or isinstance(error, SystemExit)) else None
        while found is None and clock.seconds() < within_s:
            found = self._lookout.known_failure()
            time.sleep(0.02)
        return found or failure.publish(self._store, mine)

    def _show(self, first: Failure) -> None:
        stream = sys.__stderr__ or sys.stderr
        sys.stdout.flush()
        lines = first.traceback.rstrip().splitlines()
        print("\n".join(f"[rank {first.rank}] {line}" for line in lines), file=stream, flush=True)

    def _let_all_leave(self, error: BaseException | None) -> None:
        """Rank 0 serves the store: it goes last, so that nobody loses it in the middle of leaving."""
        self._store.set(f"left/{self.world.rank}", "")
        if not self.world.is_main or self.ends_with_block:
            return
        deadline = time.monotonic() + (5.0 if error is None else 1.0)
        others = set(range(self.world.world_size)) - {child.rank for child in self._children}
        while not self._store.check([f"left/{rank}" for rank in others]) and time.monotonic() < deadline:
            time.sleep(0.005)

    def _away(self, seconds: float) -> RankFailed | None:
        """What the store's silence means; its connections are ended then, so that nothing of this rank waits for it."""
        error = self._freeze.away(seconds)
        if error is not None and self.world.store is not None:
            shut(connected_to(self.world.store.port))
        return error

    def _rest(self) -> str:
        """On an accelerator a thread that waits may spin."""
        return rest.mark(self.world.shared.port) if self.world.device.type == "cpu" else "of an accelerator"

    def _place(self) -> Place:
        place = find(self.world.rank, self.waiting, self.backwards)
        return dataclasses.replace(place, note=place.note or ("in evaluation" if self.evaluates() else ""))


def _signalled(number: int | None, error: BaseException) -> BaseException:
    """The exception that a signal means, where it came while the main thread could not hear it."""
    if number is None or isinstance(error, KeyboardInterrupt | SystemExit):
        return error
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
