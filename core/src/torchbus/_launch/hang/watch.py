"""Notices that ranks wait long for others, and says where all of them are."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from torchbus._launch.hang.questions import Questions
from torchbus._launch.hang.report import RANK_CODE, report
from torchbus._launch.store.news import REPORTED, News
from torchbus._launch.watch.place import END, Place
from torchbus._launch.watch.say import say
from torchbus._ranks.world import SharedStore
from torchbus.errors import RanksDiverged

ASK_EVERY_S = 5.0
TAKES_OVER_S = 10.0
RETRY_S = 1.0


class HangWatch:
    """Finds ranks that wait long for each other; runs in the guard's thread.

    One of the ranks that wait asks, and the guards answer. After a long wait, rank 0 prints the
    answers. ``look()`` returns an error if no rank can go on: each waits in a synchronisation, and
    not all in the same one.

    ``rest()``: returns a mark of module rest.
    ``beat()``: called while this rank waits for answers.
    ``say()``: writes where the user sees it.
    """

    def __init__(
        self,
        store: SharedStore,
        news: News,
        rank: int,
        world_size: int,
        hang_timeout_s: float,
        place: Callable[[], Place],
        rest: Callable[[], str] = lambda: "",
        beat: Callable[[], None] = lambda: None,
        say: Callable[[str], None] = say,
    ) -> None:
        self._store = store
        self._news = news
        self._rank = rank
        self._world_size = world_size
        self._hang_timeout_s = hang_timeout_s
        self._place = place
        self._rest = rest
        self._say = say
        self._questions = Questions(store, news, rank, world_size, self._place_at_rest, beat)
        self._waits: tuple[str, str] | None = None
        self._since_s = self._tried_s = time.monotonic()
        self._printed = 0
        self._told = False
        self._before: list[tuple[str, str, int, str]] = []

    def waited_s(self) -> float:
        """Return the seconds that this rank has waited in its current synchronisation.

        0.0 if it is in none.
        """
        place = self._place()
        now = (place.waits_in, place.line) if place.waits_in else None
        if now != self._waits:
            self._waits, self._since_s, self._tried_s, self._told = (
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
        due = waited_s > self._hang_timeout_s and not self._told
        if not (due or self._may_ask(waited_s)) or time.monotonic() - self._tried_s < RETRY_S:
            return None
        self._tried_s = time.monotonic()
        places = self._questions.ask()
        if places is None:
            return None
        if due:
            self._told = True
            self._tell(places, waited_s)
        return self._deadlock(places)

    def _may_ask(self, waited_s: float) -> bool:
        """Return whether this rank asks to find out whether any rank can go on.

        The rank that asked last asks again; another one takes over if it no longer asks.
        """
        pause_s = ASK_EVERY_S if self._questions.asked_last else TAKES_OVER_S
        return (
            self._questions.all_answer
            and waited_s >= ASK_EVERY_S
            and time.monotonic() - self._questions.asked_s >= pause_s
        )

    def _place_at_rest(self) -> Place:
        """Return this rank's place, with evidence that the rank can't go on by itself.

        A rank at the end has declared that it only waits. Any other rank needs the mark of rest.
        """
        place = self._place()
        return replace(place, rest=END if place.waits_in == END else self._rest())

    def _tell(self, places: list[Place], waited_s: float) -> None:
        """Print the report once for all ranks that wait.

        If rank 0 answers, or may, rank 0 prints it, because only rank 0's output is visible under
        every launcher.
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
            self._store.set(f"report/{number}", text)
        self._news.tell(self._store, f"{REPORTED}{number}")

    def _print_reports(self) -> None:
        for number in self._news.all(REPORTED)[self._printed :]:
            self._printed += 1
            self._told = self._waits is not None
            text = self._store.read(f"report/{number}") if self._rank == 0 else None
            if text is not None:
                self._say(text.decode())

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
