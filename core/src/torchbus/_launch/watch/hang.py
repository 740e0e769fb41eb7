"""Ranks that wait long for others ask, through the store, where every rank is."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, replace

from torchbus._launch.store.sealed import SealedStore
from torchbus._launch.watch.place import END, Place
from torchbus._launch.watch.say import say
from torchbus.errors import RanksDiverged

ASK_EVERY_S = 5.0
ANSWERS_WITHIN_S = 2.0


class HangWatch:
    """Finds ranks that wait long for each other; runs in the guard's thread.

    A rank that waits asks, and all guards answer. After a long wait, rank 0 prints the answers.
    ``look()`` returns an error if no rank can go on: each waits in a synchronisation, and not all
    in the same one.

    ``rest()``: returns a mark of module rest.
    ``beat()``: called while this rank waits for answers.
    ``say()``: writes where the user sees it.
    """

    def __init__(
        self,
        store: SealedStore,
        rank: int,
        world_size: int,
        hang_timeout_s: float,
        place: Callable[[], Place],
        rest: Callable[[], str] = lambda: "",
        beat: Callable[[], None] = lambda: None,
        say: Callable[[str], None] = say,
    ) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._hang_timeout_s = hang_timeout_s
        self._place = place
        self._rest = rest
        self._beat = beat
        self._say = say
        self._waits: tuple[str, str] | None = None
        self._since_s = self._asked_s = time.monotonic()
        self._answered = self._printed = 0
        self._told = False
        self._before: list[tuple[str, str, int, str]] = []

    def waited_s(self) -> float:
        """Return the seconds that this rank has waited in its current synchronisation.

        0.0 if it is in none.
        """
        place = self._place()
        now = (place.waits_in, place.line) if place.waits_in else None
        if now != self._waits:
            self._waits, self._since_s, self._asked_s, self._told = (
                now,
                time.monotonic(),
                time.monotonic(),
                False,
            )
        return time.monotonic() - self._since_s if now is not None else 0.0

    def look(self) -> RanksDiverged | None:
        waited_s = self.waited_s()
        self._answer()
        self._print_reports()
        due = waited_s > self._hang_timeout_s and not self._told
        if not due and (waited_s < ASK_EVERY_S or time.monotonic() - self._asked_s < ASK_EVERY_S):
            return None
        self._asked_s = time.monotonic()
        places = self._ask()
        if due:
            self._told = True
            self._tell(places, waited_s)
        return self._deadlock(places)

    def _answer(self) -> None:
        asked = int(self._store.add("where/asked", 0))
        while self._answered < asked:
            self._answered += 1
            self._store.set(
                f"where/{self._answered}/{self._rank}", json.dumps(asdict(self._place_at_rest()))
            )

    def _place_at_rest(self) -> Place:
        """Return this rank's place, with evidence that the rank can't go on by itself.

        A rank at the end has declared that it only waits. Any other rank needs the mark of rest.
        """
        place = self._place()
        return replace(place, rest=END if place.waits_in == END else self._rest())

    def _ask(self) -> list[Place]:
        """Return the places of the ranks that answer."""
        number = self._number_of_question()
        self._answer()
        deadline = time.monotonic() + ANSWERS_WITHIN_S
        keys = [f"where/{number}/{rank}" for rank in range(self._world_size)]
        while not self._store.check(keys) and time.monotonic() < deadline:
            time.sleep(0.05)
            self._beat()
            self._answer()
        return [
            Place(**json.loads(self._store.get(key))) for key in keys if self._store.check([key])
        ]

    def _number_of_question(self) -> int:
        """Return the last number plus one; ranks that ask simultaneously share one question."""
        before = self._store.read("where/asked") or b""
        return int(self._store.compare_set("where/asked", before, str(int(before or 0) + 1)))

    def _tell(self, places: list[Place], waited_s: float) -> None:
        """Print the report once for all ranks that wait.

        The first rank to get here writes it. If rank 0 answers, rank 0 prints it, because only
        rank 0's output is visible under every launcher.
        """
        here = "/".join(f"{place.rank}:{place.waits_in}:{place.backwards}" for place in places)
        if self._store.compare_set(f"told/{here}", "", str(self._rank)) != str(self._rank).encode():
            return None
        text = report(places, self._world_size, waited_s)
        if all(place.rank != 0 for place in places):
            return self._say(text)
        self._store.set(f"report/{self._store.add('reports', 1)}", text)
        self._print_reports()

    def _print_reports(self) -> None:
        while self._rank == 0 and self._store.check([f"report/{self._printed + 1}"]):
            self._printed += 1
            self._say(self._store.get(f"report/{self._printed}").decode())

    def _deadlock(self, places: list[Place]) -> RanksDiverged | None:
        """Return an error if no rank can go on.

        Two looks in a row must find the same places, with all ranks at rest in between. Work
        that a busy machine has not yet started counts as work.
        """
        found = [(place.waits_in, place.line, place.backwards, place.rest) for place in places]
        before, self._before = self._before, found
        if (
            found != before
            or len(places) < self._world_size
            or not all(place.waits_in and place.rest for place in places)
        ):
            return None
        if len({place.waits_in for place in places}) == 1:
            return None
        lines = "; ".join(place.words() for place in places)
        return RanksDiverged(
            f"the ranks wait for each other in different places, for good: {lines}. {RANK_CODE}"
        )


RANK_CODE = (
    "Code that depends on the rank (`if s.rank == 0:`), or on its batch (a smaller one at the end"
    " of an epoch: drop_last=True), must not leave out what all ranks have to call"
)


def report(places: list[Place], world_size: int, waited_s: float) -> str:
    """Say where each rank is, which ranks are missing, and what that usually means."""
    silent = sorted(set(range(world_size)) - {place.rank for place in places})
    missing = [place for place in places if not place.waits_in]
    lines = [f"torchbus: ranks have waited {waited_s:.0f} s for others:"]
    lines += [f"  {place.words()}" for place in places]
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


def _without_cause(places: list[Place]) -> str:
    if len({place.waits_in for place in places}) == 1:
        return (
            "all are in the same call, which takes long by itself (much to send, a slow network),"
            " or has lost one of its connections"
        )
    return f"they wait for each other. {RANK_CODE}"


def _cause(missing: list[Place], silent: list[int]) -> str:
    if silent:
        return "If a rank gives no sign of life for freeze_timeout, the job ends"
    if any("DataLoader" in place.note for place in missing):
        return "Its data does not arrive: check the workers of that loader, and what they read"
    if any("evaluation" in place.note for place in missing):
        return "It seems to evaluate by itself: the others wait until it is back"
    return f"It may only be slow; then all ranks go on by themselves. {RANK_CODE}"
