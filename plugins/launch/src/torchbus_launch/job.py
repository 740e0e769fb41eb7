"""The job: a rank's link to the other ranks, from the start of the block to its end."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

from torchbus.errors import RankFailed, RanksDiverged
from torchbus.world import SharedStore, World

from torchbus_launch import compat, failure, garbage, inherited, stall, store, worker
from torchbus_launch.broadcast_log import NOTE, WHERE, BroadcastLog, FairClock, connected_to, shut
from torchbus_launch.children import Child, end_children
from torchbus_launch.ending import EndCounts, JobEnd
from torchbus_launch.failure import Failure
from torchbus_launch.freeze import LOST, Freeze
from torchbus_launch.guard import Guard, Leave
from torchbus_launch.hang import HangWatch
from torchbus_launch.health_checks import HealthChecks, received, store_lost
from torchbus_launch.rank_position import (
    BLIND,
    DEVICE,
    END,
    LOOKS,
    RankPosition,
    find,
    waited_workers,
)
from torchbus_launch.request import LaunchRequest
from torchbus_launch.store import SealedStore, StoreBarrier, shared_store
from torchbus_launch.terminal import say
from torchbus_redaction.redactor import redacted_output

ENDED, PASSED = "ended", "gone on"


class Job:
    """This rank's part of the job.

    ``waiting`` is the synchronisation in which the main thread waits, as words and numbers, or
    None. ``begin_alike`` is whether all ranks begin the same number of collectives of the main
    group.
    """

    def __init__(
        self,
        world: World,
        request: LaunchRequest,
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
        self._looked = self._looked_before = self._questions = 0
        self._notes: list[str] = []
        self._children = children or []
        self._forked = forked
        self._keep = keep
        self._pid, self._port = os.getpid(), shared_store(world).port
        self._thread = threading.get_ident()  # the loop's, which need not be the main one
        self._store = shared_store(world).within("job")
        self.evaluates: Callable[[], bool] = lambda: False
        self.begin_alike = True
        self._watch_over(request, parent_pid)
        self.guard = self._make_guard()
        self.guard.start()
        inherited.guarded()
        if ends_with_block and not forked:
            StoreBarrier(shared_store(world), "joined", world.rank, world.world_size).say()

    def _watch_over(self, request: LaunchRequest, parent_pid: int | None) -> None:
        """Begin to watch for ranks that hang, freeze or leave, over a separate connection."""
        store = shared_store(self.world).connection(request.timeout).within("job")
        self._log = BroadcastLog(self._store, self._answer if self.world.is_main else None)
        self._log.start()
        self._ending = JobEnd(self.world, self._store, self._log)
        workers = partial(waited_workers, self._thread)
        self._freeze = Freeze(store, self.world, request, workers, parent_pid)
        rank, place = self.world.rank, self._place
        hang = HangWatch(
            store,
            self._log,
            rank,
            self.world.world_size,
            request.hang_timeout_s,
            place,
            self._idle_mark,
            lambda: self.guard.beat(),
            self._freeze.say,
            request.timeout.total_seconds(),
        )
        self._health_checks = HealthChecks(
            store, self._log, rank, place, self._children, parent_pid, self._freeze, hang
        )

    def _make_guard(self) -> Guard:
        # Lambdas, not bound methods: part() deletes these objects, and the guard may outlive them.
        guard = Guard(
            self.world.rank,
            lambda: self._health_checks.look(),
            lambda number: self._health_checks.report_signal(number),
            beat=lambda: self._freeze.beat(),
            away=self._away,
            report=lambda error: self._health_checks.report(error),
            before_kill=lambda: self._show_first(),
        )
        guard.on_raise(lambda: self._freeze.end_workers())
        return guard

    @property
    def launched(self) -> int:
        """Number of ranks that this process started."""
        return len(self._children)

    def wait_in(self, *label: object) -> None:
        """Record that the main thread is about to wait for the other ranks.

        ``label`` is the name of the synchronisation, with its numbers. If ranks wait in
        synchronisations of different names, so that none can continue, the guards end them.
        """
        self.waiting = label

    def go_on(self) -> None:
        """Record that the main thread no longer waits."""
        self.waiting = None

    @property
    def position(self) -> tuple[int, int]:
        """The numbers of synchronised backwards and of collectives that this rank has begun."""
        return self.backwards, compat.begun() or 0

    def _begun(self) -> int | None:
        """Return how many collectives this rank has begun; None if other ranks may differ."""
        return compat.begun() if self.begin_alike else None

    def count_backward(self) -> None:
        """Count one more synchronised backward."""
        self.backwards += 1
        self._say_notes()

    def on_release(self, release: Callable[[], None]) -> None:
        """Register a function that ends the collectives of a process group of a plugin.

        The guard's thread calls ``release()``.
        """
        self.guard.on_release(release)

    def leave_signals(self, numbers: set[int]) -> None:
        """Leave these signals to a plugin that handles them. An empty set returns them all."""
        self.guard.handled = set(numbers)

    def stop_for(self, error: BaseException) -> None:
        """End the job for an error that the loop is about to raise, even if the loop catches it."""
        self.guard.stop_for(error)

    def end_loop(self, error: BaseException | None) -> BaseException | None:
        """Wait until the loops of all ranks have ended, and return the error by which they end.

        Without this wait, collectives at the end of the block would pair with those of a loop that
        continues. If this rank's loop has caught the reason to stop, that is returned.
        """
        if self.guard.reason is None and (error is None or _is_success(error)):
            mine = EndCounts(self.world.rank, self.backwards, self._begun())
            return self._wait_for_all_ends(
                lambda: self._ending.say_loop_ended(mine), lambda _: self._ending.have_loops_ended
            )
        is_caught = error is None or isinstance(error, Leave) or _is_success(error)
        return self.guard.reason if is_caught else error

    @property
    def is_ending(self) -> bool:
        """Whether this rank has a reason to stop, such as the failure of another rank."""
        return self.guard.reason is not None

    def wait_until(
        self, met: Callable[[SharedStore], bool], seconds: float, asks: bool = True
    ) -> bool:
        """Poll until ``met()``, without a collective.

        ``asks`` is True if ``met`` sends requests to the store, which are rarer in large worlds.
        Returns False after ``seconds``. Raises this rank's reason to stop, if one comes up.
        """
        assert self.world.store is not None
        deadline, pause_s = time.monotonic() + seconds, 0.0005
        longest_s = store.pause_s(0.05, self.world.world_size if asks else 1)
        while not met(self.world.store):
            if self.guard.reason is not None:
                raise self.guard.reason
            if time.monotonic() > deadline:
                return False
            self._looked += 1
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, longest_s)
        return True

    def asks_rank0(self) -> Iterator[str]:
        """Ask rank 0 for its position; yield how it has passed this rank's position, or "".

        The word is ENDED if rank 0 has ended its loop, and PASSED if it has begun a backward or a
        collective that this rank has not. The pause between questions doubles, because all ranks
        receive each question.
        """
        assert self.world.store is not None
        here, pause_s = self.position, 0.1
        while True:
            self._questions += 1
            question = f"{WHERE}{self.world.rank} {self._questions}"
            self._log.append(self._store, question)
            deadline = time.monotonic() + pause_s
            while (answer := self._store.read(question)) is None or time.monotonic() < deadline:
                yield _how_past(json.loads(answer), here) if answer is not None else ""
            pause_s *= 2

    def note(self, text: str, *, if_well: bool = False) -> None:
        """Let rank 0 write a line to the terminal, because only rank 0 is sure to have one.

        With ``if_well``, it does so after the next backward or at a successful end, so not if the
        ranks have diverged before.
        """
        self._notes.append(text)
        if not if_well:
            self._say_notes()

    def _say_notes(self) -> None:
        while self._notes:
            self._log.append(self._store, NOTE + redacted_output(self._notes.pop(0)))

    def _answer(self, question: str) -> str:
        if question.startswith(NOTE):
            say(question.removeprefix(NOTE))
        ended = self._place().waits_in == END or self.guard.leaving
        return json.dumps([ended, *self.position])

    def finish(self, error: BaseException | None) -> BaseException | None:
        """Wait for the other ranks at the end, and return the error to raise, if any.

        Without an error, this rank waits until every rank has reached its end. With an error, it
        publishes the error and ends the collectives in which others wait.
        """
        if error is None or _is_success(error):
            with contextlib.suppress(RuntimeError):
                self._say_notes()
            error = (
                self._wait_for_all_ends(self._ending.say, lambda _: self._ending.is_complete)
                or error
            )
        self.guard.leaving = True
        if error is None or _is_success(error):
            return error
        return FailureResolver(self.world, self._store, self.guard, self._health_checks).resolve(
            error
        )

    def part(self, error: BaseException | None) -> None:
        """Leave the job: wait for the ranks that this one started, and stop the guard."""
        self.guard.leaving = True
        found = self._health_checks.found if error is not None else None
        cause = ""
        if found is not None and (found.diverged or found.rank == self.world.rank):
            cause = str(found.as_error())  # Python prints the error once this process ends
        end_children(self._children, error is None, cause)
        if self._children:
            garbage.thaw()
        self.guard.stop_looking()  # the store closes once all ranks have left
        self._log.stop()
        with contextlib.suppress(RuntimeError):
            self._let_all_leave(error)
        if error is not None:
            self._health_checks.let_first_end()
        self.guard.stop()
        shared_store(self.world).close()  # rank 0's port with it
        self.world = dataclasses.replace(self.world, store=None)
        # this closes their connections
        del self._store, self._log, self._ending, self._health_checks, self._freeze
        if error is None and not self.ends_with_block:
            self.guard.deliver_late()

    def let_go_in_fork(self) -> None:
        """Detach from the job in a child process that user code has forked."""
        self.guard.forget()
        worker.detach(self.world.rank, self._pid, self._thread, self._port)

    def end_process(self, error: BaseException | None) -> None:
        """End the process of a rank that the session started, at the end of its block."""
        if self._forked:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(0 if error is None else 1)
        if error is None:
            raise SystemExit(0)

    def _show_first(self) -> None:
        if self.world.is_main and self._health_checks.found is not None:
            failure.show(self._health_checks.found)

    def _wait_for_all_ends(
        self, say: Callable[[], None], met: Callable[[SharedStore], bool]
    ) -> BaseException | None:
        try:
            say()
            self.wait_until(met, math.inf, asks=False)  # the guard ends the wait after timeout_s
        except (RankFailed, RanksDiverged, KeyboardInterrupt, SystemExit) as error:
            return error
        except RuntimeError as lost:
            return self.guard.reason or store_lost(f": {lost}")
        return None

    def _let_all_leave(self, error: BaseException | None) -> None:
        """Leave last if this is rank 0.

        It serves the store, which the others need until they have left.
        """
        self._ending.leave()
        has_others = self.world.world_size > 1 + len(self._children)
        if self.world.is_main and not self.ends_with_block and has_others:
            self._ending.wait_for_all(5.0 if error is None else 1.0)

    def _away(self, seconds: float) -> RankFailed | None:
        """Return the error that the store's silence means, or None.

        With an error, shut this rank's connections to the store, so that no thread waits for it.
        """
        error = self._freeze.away(seconds)
        if error is not None and self.world.store is not None:
            shut(connected_to(self._port))
        return error

    def _idle_mark(self) -> str:
        """Return this rank's mark of rest; see ``RankPosition``.

        On an accelerator, the mark is a constant, because waiting threads may spin. It is also a
        constant while ``wait_until`` polls.
        """
        if self._looked > self._looked_before:
            self._looked_before = self._looked
            return LOOKS
        return (
            stall.mark(shared_store(self.world).port) if self.world.device.type == "cpu" else BLIND
        )

    def _place(self) -> RankPosition:
        place = find(self.world.rank, self.waiting, self.backwards, self._thread)
        begun = self._begun() if self.world.device.type != "cpu" else None
        return dataclasses.replace(
            place,
            waits_in=place.waits_in or (DEVICE if begun else ""),
            begun=begun,
            note=place.note or ("in evaluation" if self.evaluates() else ""),
        )


def _is_success(error: BaseException) -> bool:
    return isinstance(error, SystemExit) and not error.code


def _how_past(answer: list[int], here: tuple[int, int]) -> str:
    ended, backwards, begun = answer
    if ended:
        return ENDED
    return PASSED if backwards > here[0] or begun > here[1] else ""


class FailureResolver:
    """Decides what a rank that ends with an error raises and prints."""

    def __init__(
        self, world: World, store: SealedStore, guard: Guard, health_checks: HealthChecks
    ) -> None:
        self._world = world
        self._store = store
        self._guard = guard
        self._health_checks = health_checks

    def resolve(self, error: BaseException) -> BaseException:
        """Find the first failure, publish it, end the collectives, and return the error to raise.

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
            self._health_checks.found = first = self._first_failure(error, mine)
            self._guard.release()
            is_lost = first.summary == LOST
            if is_lost:  # every rank prints it: a launcher that sees a killed rank ends all ranks
                say(f"torchbus: {first.as_error()}")
            if first.diverged and failure.is_consequence(error) and not signal_seen:
                # a peer may have reacted first to what this rank's own guard found
                return first.as_error()
            is_ours = first.rank == self._world.rank or first.summary == mine.summary
            if self._world.is_main and not (is_ours or is_lost):
                failure.show(first)
            if is_ours or signal_seen:
                return _signalled(signal_seen, error)
            return _of_another(first, error)
        self._guard.release()
        return store_lost() if failure.is_consequence(error) else error

    def _signal(self, error: BaseException) -> int | None:
        """Return the signal that this rank has received, if any."""
        number = self._guard.seen_signal
        if number is None and isinstance(error, KeyboardInterrupt):
            number = signal.SIGINT if self._guard.has_seen_sigint() else None
        around = error.__context__
        if number and around is not None and failure.is_consequence(around):
            # the guard ended the collective to let Python deliver the signal
            error.__suppress_context__ = True
        return number

    def _first_failure(self, error: BaseException, mine: Failure) -> Failure:
        clock, within_s = FairClock(0.1), 3.0 if failure.is_consequence(error) else 0.0
        pause_s = store.pause_s(0.02, self._world.world_size)
        found = (
            self._health_checks.lost_rank()
            if self._guard.reason is None and (within_s or isinstance(error, SystemExit))
            else None
        )
        while found is None and clock.seconds() < within_s:
            found = self._health_checks.known_failure()
            time.sleep(pause_s)
        return found or self._health_checks.publish(self._store, mine)


def _of_another(first: Failure, error: BaseException) -> BaseException:
    """Return the error that this rank raises because another one has failed."""
    if isinstance(error, RankFailed | RanksDiverged | KeyboardInterrupt | SystemExit):
        return error
    return first.as_error()


def _signalled(number: int | None, error: BaseException) -> BaseException:
    """Return the exception for a signal that came while the main thread could not receive it."""
    if number is None or isinstance(error, KeyboardInterrupt | SystemExit):
        return error
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
