"""A rank's link to the others: the shared store, the ranks it started, and how all ranks leave."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

from torchbus._launch.ending import Ending
from torchbus._launch.frozen import rest
from torchbus._launch.frozen.freeze import Freeze
from torchbus._launch.parting import end_children
from torchbus._launch.request import Request
from torchbus._launch.settling import Settling
from torchbus._launch.start.children import Child
from torchbus._launch.store import polling
from torchbus._launch.store.news import NOTE, WHERE, News
from torchbus._launch.store.roll_call import RollCall
from torchbus._launch.watch import orphan
from torchbus._launch.watch.ended import Ended
from torchbus._launch.watch.guard import Guard
from torchbus._launch.watch.lookout import GONE, Lookout
from torchbus._launch.watch.place import END, Place, find, waited_workers
from torchbus._launch.watch.say import say
from torchbus._launch.watch.sockets import connected_to, shut
from torchbus._ranks import collectives
from torchbus._ranks.world import SharedStore, World
from torchbus._redaction import redacted
from torchbus.errors import RankFailed, RanksDiverged

ENDED, GONE_ON = "ended", "gone on"


class Job:
    """This rank's part of the job.

    ``waiting``: the synchronisation that the main thread waits in, as words and numbers, or None.
    """

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
        self._looked = self._looked_before = self._questions = 0
        self._children = children or []
        self._forked = forked
        self._keep = keep
        self._thread = threading.get_ident()  # the loop's, which need not be the main one
        self._store = world.shared.within("job")
        self.evaluates: Callable[[], bool] = lambda: False
        self._watch_over(request, parent_pid)
        self.guard = self._make_guard()
        self.guard.start()
        orphan.guarded()
        if ends_with_block and not forked:
            RollCall(world.shared, "joined", world.rank, world.world_size).say()

    def _watch_over(self, request: Request, parent_pid: int | None) -> None:
        """Begin to notice ranks that hang, freeze or leave, by a connection of the guard's own."""
        store = self.world.shared.connection(request.timeout).within("job")
        self._news = News(self._store, self._answer if self.world.is_main else None)
        self._news.start()
        self._ending = Ending(self.world, self._store, self._news)
        workers = partial(waited_workers, self._thread)
        self._freeze = Freeze(store, self.world, request, workers, parent_pid)
        self._lookout = Lookout(
            store,
            self._news,
            self.world.rank,
            self.world.world_size,
            request.hang_timeout_s,
            self._place,
            self._children,
            parent_pid,
            self._freeze,
            self._rest,
            lambda: self.guard.beat(),
        )

    def _make_guard(self) -> Guard:
        # Lambdas, not bound methods: part() drops the connection, and the guard may outlive it.
        guard = Guard(
            self.world.rank,
            lambda: self._lookout.look(),
            lambda number: self._lookout.report_signal(number),
            beat=lambda: self._freeze.beat(),
            away=self._away,
        )
        guard.on_raise(lambda: self._freeze.end_workers())
        return guard

    @property
    def launched(self) -> int:
        """Number of ranks that this process started."""
        return len(self._children)

    def wait_in(self, *words: object) -> None:
        """Record that the main thread is about to wait for the other ranks.

        ``words``: the name of the synchronisation, with its numbers. If ranks wait for ever in
        synchronisations of different names, the guards end them.
        """
        self.waiting = words

    def go_on(self) -> None:
        """Record that the main thread no longer waits."""
        self.waiting = None

    def count_backward(self) -> None:
        """Count one more synchronised backward."""
        self.backwards += 1

    def on_release(self, release: Callable[[], None]) -> None:
        """Register how to end the collectives of a process group that a plugin has made.

        The guard's thread calls ``release()``.
        """
        self.guard.on_release(release)

    def leave_signals(self, numbers: set[int]) -> None:
        """Leave these signals to a plugin that handles them; an empty set takes them back."""
        self.guard.handled = set(numbers)

    @property
    def is_ending(self) -> bool:
        """Whether this rank has a reason to stop, such as the failure of another rank."""
        return self.guard.reason is not None

    def wait_until(
        self, met: Callable[[SharedStore], bool], seconds: float, asks: bool = True
    ) -> bool:
        """Wait without a collective until the shared store meets a condition.

        ``asks``: whether ``met`` asks the store, which large worlds must do more slowly. Returns
        False after ``seconds``. Raises this rank's reason to stop, if one comes up.
        """
        assert self.world.store is not None
        deadline, pause_s = time.monotonic() + seconds, 0.0005
        longest_s = polling.pause_s(0.05, self.world.world_size if asks else 1)
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
        """Ask rank 0 where it is; yield how it has passed the place where this rank is, or "".

        It has, once it has ENDED its loop, or GONE_ON: begun a collective that this rank has not.
        Each question is asked after twice the time, because all ranks hear it.
        """
        assert self.world.store is not None
        here, pause_s = (self.backwards, collectives.begun() or 0), 0.1
        while True:
            self._questions += 1
            question = f"{WHERE}{self.world.rank} {self._questions}"
            self._news.tell(self._store, question)
            deadline = time.monotonic() + pause_s
            while (answer := self._store.read(question)) is None or time.monotonic() < deadline:
                yield _how_past(json.loads(answer), here) if answer is not None else ""
            pause_s *= 2

    def note(self, text: str) -> None:
        """Let rank 0 write a line to the terminal, which it alone is sure to have."""
        self._news.tell(self._store, NOTE + text)

    def _answer(self, question: str) -> str:
        if question.startswith(NOTE):
            say(redacted(question.removeprefix(NOTE)))
        ended = self._place().waits_in == END or self.guard.leaving
        return json.dumps([ended, self.backwards, collectives.begun() or 0])

    def meet(self, error: BaseException | None) -> BaseException | None:
        """Meet the other ranks at the end, and return the error that this rank must raise, if any.

        Without an error, this rank waits until every rank has reached its end. With an error, it
        publishes the error and ends the collectives in which others wait.
        """
        if error is None or (isinstance(error, SystemExit) and not error.code):
            error = self._wait_for_all_ends() or error
        self.guard.leaving = True
        if error is None or (isinstance(error, SystemExit) and not error.code):
            return error
        return Settling(self.world, self._store, self.guard, self._lookout).settle(error)

    def part(self, error: BaseException | None) -> None:
        """Leave the job: wait for the ranks that this one started, and stop the guard."""
        self.guard.leaving = True
        end_children(self._children, in_peace=error is None)
        self.guard.stop_looking()  # at the store: it closes once all ranks have left
        self._news.stop()
        with contextlib.suppress(RuntimeError):
            self._let_all_leave(error)
        self.guard.stop()
        self.world.shared.close()  # rank 0's port with it
        self.world = dataclasses.replace(self.world, store=None)
        # with their connections
        del self._store, self._news, self._ending, self._lookout, self._freeze

    def end_process(self, error: BaseException | None) -> None:
        """End the process of a rank that the session started, at the end of its block."""
        if self._forked:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(0 if error is None else 1)
        if error is None:
            raise SystemExit(0)

    def _wait_for_all_ends(self) -> BaseException | None:
        try:
            self._ending.say(Ended(self.world.rank, self.backwards, collectives.begun()))
            self.wait_until(lambda _: self._ending.is_complete, float("inf"), asks=False)
        except (RankFailed, RanksDiverged, KeyboardInterrupt, SystemExit) as error:
            return error
        except RuntimeError as lost:
            return self.guard.reason or RankFailed(f"{GONE}: {lost}")
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
            shut(connected_to(self.world.store.port))
        return error

    def _rest(self) -> str:
        """Return the mark of module rest.

        On an accelerator it is a constant, because threads that wait may spin. While
        ``wait_until`` looks again and again, it is one as well.
        """
        if self._looked > self._looked_before:
            self._looked_before = self._looked
            return "looks at the store"
        return (
            rest.mark(self.world.shared.port)
            if self.world.device.type == "cpu"
            else "of an accelerator"
        )

    def _place(self) -> Place:
        place = find(self.world.rank, self.waiting, self.backwards, self._thread)
        return dataclasses.replace(
            place, note=place.note or ("in evaluation" if self.evaluates() else "")
        )


def _how_past(answer: list[int], here: tuple[int, int]) -> str:
    ended, backwards, begun = answer
    if ended:
        return ENDED
    return GONE_ON if backwards > here[0] or begun > here[1] else ""
