"""Collects the positions of all ranks, and reports hangs and deadlocks."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, replace

from torchbus.errors import RanksDiverged

from torchbus_launch.broadcast_log import ASKED, ENDED, LOOPS_ENDED, REPORTED, BroadcastLog
from torchbus_launch.rank_position import BLIND, DEVICE, END, LOOKS, RankPosition
from torchbus_launch.store import SealedStore
from torchbus_launch.terminal import say
from torchbus_redaction.redactor import Redactor, redacted_output

ANSWERS_WITHIN_S = 2.0
ALL_ANSWER = 1024
"""In a larger world, only ranks that are not where the asking rank is answer."""
SLOTS = 32
"""The number of answers in a larger world."""


class Questions:
    """Exchanges the ranks' positions; runs in the guard's thread.

    ``place()`` returns where this rank is. ``beat()`` is called while this rank waits for answers.
    """

    def __init__(
        self,
        store: SealedStore,
        log: BroadcastLog,
        rank: int,
        world_size: int,
        place: Callable[[], RankPosition],
        beat: Callable[[], None],
    ) -> None:
        self._store = store
        self._log = log
        self._rank = rank
        self._world_size = world_size
        self._place = place
        self._beat = beat
        self._answered = 0
        self.asked_s = float("-inf")
        """When this rank last received a question, by time.monotonic()."""
        self.asked_last = False
        """Whether the last question was this rank's."""

    @property
    def all_answer(self) -> bool:
        return self._world_size <= ALL_ANSWER

    def answer(self) -> None:
        for number in map(int, self._log.all(ASKED)[self._answered :]):
            self._answered, self.asked_s = self._answered + 1, time.monotonic()
            self.asked_last = self._store.read(f"asker/{number}") == str(self._rank).encode()
            place = self._place()
            if self.all_answer:
                self._store.set(f"where/{number}/{self._rank}", _written(place))
            elif not self.asked_last and not self._is_with_asker(number, place):
                self._take_slot(number, place)

    def ask(self) -> list[RankPosition] | None:
        """Return the positions of the ranks that answer; None if another rank already asks."""
        number = self._answered + 1
        mine = str(self._rank)
        if self._store.compare_set(f"asker/{number}", "", mine) != mine.encode():
            return None
        ours = self._place()
        self._store.set(f"asked from/{number}", json.dumps(_call(ours)))
        self._log.append(self._store, f"{ASKED}{number}")
        return _on_devices(
            self._all_places(number) if self.all_answer else [ours, *self._other_places(number)]
        )

    def _all_places(self, number: int) -> list[RankPosition]:
        keys = [f"where/{number}/{rank}" for rank in range(self._world_size)]
        missing, deadline = len(keys), time.monotonic() + ANSWERS_WITHIN_S
        while missing and time.monotonic() < deadline:
            self._pause()
            while missing and self._store.check([keys[missing - 1]]):
                missing -= 1
        return self._read(keys)

    def _other_places(self, number: int) -> list[RankPosition]:
        deadline = time.monotonic() + ANSWERS_WITHIN_S
        while time.monotonic() < deadline:
            self._pause()
        return self._read([f"where/{number}/{slot}" for slot in range(SLOTS)])

    def _pause(self) -> None:
        time.sleep(0.05)
        self._beat()
        self.answer()

    def _read(self, keys: list[str]) -> list[RankPosition]:
        texts = map(self._store.read, keys)
        return [RankPosition(**json.loads(text)) for text in texts if text is not None]

    def _is_with_asker(self, number: int, place: RankPosition) -> bool:
        return bool(json.loads(self._store.get(f"asked from/{number}")) == _call(place))

    def _take_slot(self, number: int, place: RankPosition) -> None:
        written = _written(place)
        if self._store.check([f"where/{number}/{SLOTS - 1}"]):
            return
        for slot in range(SLOTS):
            if self._store.compare_set(f"where/{number}/{slot}", "", written) == written.encode():
                return


def _written(place: RankPosition) -> str:
    """Return a position as JSON for other ranks, without secrets in its line of code."""
    return json.dumps(asdict(replace(place, source=Redactor().code(place.source))))


def _call(place: RankPosition) -> list[object]:
    return [place.waits_in, place.line, place.backwards, place.begun]


def _on_devices(places: list[RankPosition]) -> list[RankPosition]:
    """Return the positions. On devices, a rank waits only if others began fewer collectives."""
    begun = {place.begun or 0 for place in places}
    waiting = max(begun) if len(begun) > 1 else -1
    return [
        replace(place, waits_in="")
        if place.waits_in == DEVICE and place.begun != waiting
        else place
        for place in places
    ]


RANK_CODE = (
    "Code that depends on the rank (`if s.rank == 0:`), or on its batch (a smaller one at the end"
    " of an epoch: drop_last=True), must not leave out what all ranks have to call"
)


def report(
    places: list[RankPosition], world_size: int, waited_s: float, *, all_answer: bool = True
) -> str:
    """Return the report: each rank's position, the missing ranks, and the usual cause.

    ``all_answer`` is False if only ranks that are not where the first one is have answered.
    """
    if not all_answer:
        return _of_some(places, world_size, waited_s)
    silent = sorted(set(range(world_size)) - {place.rank for place in places})
    missing = [place for place in places if not place.waits_in]
    lines = [f"torchbus: ranks have waited {waited_s:.0f} s for others:"]
    lines += [f"  {place.describe()}" for place in places]
    lines += [
        f"  rank {rank} does not answer: it is stopped, in native code that holds Python's lock, or"
        " its machine is cut off"
        for rank in silent
    ]
    who = ", ".join(str(rank) for rank in sorted([*silent, *(place.rank for place in missing)]))
    lines.append(
        f"  missing: rank {who}. {_cause(missing, silent)}"
        if who
        else f"  none is missing: {_without_cause(places)}"
    )
    return "\n".join(lines)


def _of_some(places: list[RankPosition], world_size: int, waited_s: float) -> str:
    asked, *elsewhere = places
    lines = [f"torchbus: ranks have waited {waited_s:.0f} s for others:", f"  {asked.describe()}"]
    lines += [f"  {place.describe()}" for place in elsewhere]
    lines.append(
        f"  of {world_size} ranks, {len(elsewhere)} say that they are elsewhere than rank"
        f" {asked.rank}. The others are there, too, or do not answer; of more than {SLOTS} that are"
        " elsewhere, only the first are shown"
    )
    lines.append(f"  {_cause([place for place in elsewhere if not place.waits_in], [])}")
    return "\n".join(lines)


def _without_cause(places: list[RankPosition]) -> str:
    if len({place.waits_in for place in places}) == 1:
        return (
            "all are in the same call, which is slow (much to send, a slow network),"
            " or has lost one of its connections"
        )
    return f"they wait for each other. {RANK_CODE}"


def _cause(missing: list[RankPosition], silent: list[int]) -> str:
    if silent:
        return "If a rank gives no sign of life for freeze_timeout, the job ends"
    if any("DataLoader" in place.note for place in missing):
        return "Its data does not arrive: check the workers of that loader, and what they read"
    if any("evaluation" in place.note for place in missing):
        return "It seems to evaluate without the others, which wait until it is back"
    return f"It may only be slow; then all ranks continue. {RANK_CODE}"


ASK_EVERY_S = 5.0
ASK_SOON_S = 1.5
SOON_FOR_S = 10.0  # how long after the begin of a wait to ask every ASK_SOON_S
RETRY_S = 1.0


class HangWatch:
    """Finds ranks that wait long for each other; runs in the guard's thread.

    One of the waiting ranks asks, and the guards answer. After a long wait, rank 0 prints the
    answers. ``look()`` returns an error if no rank can continue, because all wait, but in different
    synchronisations.

    Args:
        idle_mark: returns this rank's mark of rest (see ``RankPosition``).
        beat: called while this rank waits for answers.
        say: writes a text where the user sees it.
        timeout_s: how long a rank waits for a rank that is elsewhere. Gloo ends its collectives
            itself after that time; this class ends the session's waits and NCCL's collectives.
    """

    def __init__(
        self,
        store: SealedStore,
        log: BroadcastLog,
        rank: int,
        world_size: int,
        hang_timeout_s: float,
        place: Callable[[], RankPosition],
        idle_mark: Callable[[], str] = lambda: "",
        beat: Callable[[], None] = lambda: None,
        say: Callable[[str], None] = say,
        timeout_s: float = math.inf,
    ) -> None:
        self._store = store
        self._log = log
        self._rank = rank
        self._world_size = world_size
        self._hang_timeout_s = hang_timeout_s
        self._place = place
        self._idle_mark = idle_mark
        self._say = say
        self._timeout_s = timeout_s
        self._questions = Questions(store, log, rank, world_size, self._place_at_pause, beat)
        self._waits: tuple[str, str] | None = None
        self._since_s = self._tried_s = time.monotonic()
        self._printed = 0
        self._has_reported = False
        self._before: list[tuple[str, str, int, str, str]] = []

    def waited_s(self) -> float:
        """Return the seconds that this rank has waited in its current synchronisation, or 0.0."""
        place = self._place()
        line = place.line if place.waits_in != DEVICE else f"{place.backwards} {place.begun}"
        now = (place.waits_in, line) if place.waits_in else None
        if now != self._waits:
            self._waits, self._since_s, self._tried_s, self._has_reported = (
                now,
                time.monotonic(),
                time.monotonic(),
                False,
            )
        return time.monotonic() - self._since_s if now is not None else 0.0

    def look(self) -> RanksDiverged | None:
        waited_s = self.waited_s()
        self._questions.answer()
        self._print_reports()
        due = waited_s > self._hang_timeout_s and not self._has_reported
        overdue = waited_s > self._timeout_s
        again = (due or overdue) and time.monotonic() - self._tried_s >= RETRY_S
        if not (again or self._may_ask(waited_s)):
            return None
        if again:
            self._tried_s = time.monotonic()
        places = self._questions.ask()
        if places is None:
            return None
        if due and any(place.waits_in for place in places):
            self._has_reported = True
            self._report(places, waited_s)
        return (self._missing(places) if overdue else None) or self._deadlock(places)

    def _may_ask(self, waited_s: float) -> bool:
        """Return whether it is this rank's turn to ask all ranks for their positions.

        The rank that asked last asks again; another one takes over if it no longer asks. A rank
        that does not answer must not delay the report.
        """
        ends_s = waited_s + ANSWERS_WITHIN_S
        if not self._has_reported and waited_s < self._hang_timeout_s < ends_s:
            return False
        every_s = self._every_s(waited_s)
        pause_s = every_s if self._questions.asked_last else 2 * every_s
        return (
            self._questions.all_answer
            and waited_s >= every_s
            and time.monotonic() - self._questions.asked_s >= pause_s
        )

    def _every_s(self, waited_s: float) -> float:
        """Return the seconds from look to look, which are more if accelerators hide their work."""
        has_ended = self._log.all(ENDED) and not self._log.has(LOOPS_ENDED)
        sees = all(mark != BLIND for *_, mark, _ in self._before)
        soon = has_ended or (sees and waited_s < SOON_FOR_S)
        return ASK_SOON_S if soon else ASK_EVERY_S

    def _place_at_pause(self) -> RankPosition:
        """Return this rank's place, with evidence that the rank can't continue without the others.

        A rank at the end has declared that it only waits. Any other rank needs a mark of rest.
        """
        place = self._place()
        remaining = END if place.waits_in == END else self._idle_mark()
        return replace(
            place, idle_mark=remaining, call="" if remaining in (END, LOOKS, BLIND) else place.call
        )

    def _report(self, places: list[RankPosition], waited_s: float) -> None:
        """Print the report once for all ranks that wait.

        Rank 0 prints it unless it is known not to answer, because only rank 0's output is visible
        under every launcher.
        """
        here = "/".join(f"{place.rank}:{place.waits_in}:{place.backwards}" for place in places)
        if self._store.compare_set(f"told/{here}", "", str(self._rank)) != str(self._rank).encode():
            return
        number = self._store.add("reports", 1)
        text = report(places, self._world_size, waited_s, all_answer=self._questions.all_answer)
        rank_0_is_silent = all(place.rank != 0 for place in places)
        if self._rank == 0 or (self._questions.all_answer and rank_0_is_silent):
            self._say(text)
        else:
            self._store.set(f"report/{number}", redacted_output(text))
        self._log.append(self._store, f"{REPORTED}{number}")

    def _print_reports(self) -> None:
        for number in self._log.all(REPORTED)[self._printed :]:
            self._printed += 1
            self._has_reported = self._waits is not None
            text = self._store.read(f"report/{number}") if self._rank == 0 else None
            if text is not None:
                self._say(text.decode())

    def _missing(self, places: list[RankPosition]) -> RanksDiverged | None:
        """Return an error that names the ranks that are not waiting, if there are any."""
        missing = [place for place in places if not place.waits_in]
        if not missing or any(place.rank == self._rank for place in missing):
            return None
        listed = "; ".join(place.describe() for place in missing)
        return RanksDiverged(
            f"rank {self._rank} has waited {self._timeout_s:g} s (timeout_s) in"
            f" {self._place().waits_in}: {listed}. A rank that may be away that long needs a"
            " longer timeout_s"
        )

    def _deadlock(self, places: list[RankPosition]) -> RanksDiverged | None:
        """Return an error if no rank can continue.

        Two looks in a row must find the same positions, with all ranks at rest in between. A thread
        that waits for a processor is not at rest.
        """
        found = [
            (place.waits_in, place.line, place.backwards, place.idle_mark, place.call)
            for place in places
        ]
        before, self._before = self._before, found
        if (
            found != before
            or len(places) < self._world_size
            or not all(place.waits_in and place.idle_mark for place in places)
        ):
            return None
        calls = {place.call for place in places}
        if len({place.waits_in for place in places}) == 1 and (len(calls) == 1 or "" in calls):
            return None
        lines = "; ".join(
            place.describe() + (f" (in {place.call})" if place.call else "") for place in places
        )
        return RanksDiverged(
            f"deadlock: the ranks wait for each other in different places: {lines}. {RANK_CODE}"
        )
