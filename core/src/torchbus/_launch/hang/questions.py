"""One rank asks, through the store, where all ranks are; their guards answer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict

from torchbus._launch.store.news import ASKED, News
from torchbus._launch.watch.place import Place
from torchbus._ranks.world import SharedStore

ANSWERS_WITHIN_S = 2.0
ALL_ANSWER = 1024
"""In a larger world, only ranks that are elsewhere than the asking rank answer."""
SLOTS = 32
"""So many of them, in a larger world."""


class Questions:
    """Asks and answers; runs in the guard's thread.

    ``place()``: where this rank is. ``beat()``: called while this rank waits for answers.
    """

    def __init__(
        self,
        store: SharedStore,
        news: News,
        rank: int,
        world_size: int,
        place: Callable[[], Place],
        beat: Callable[[], None],
    ) -> None:
        self._store = store
        self._news = news
        self._rank = rank
        self._world_size = world_size
        self._place = place
        self._beat = beat
        self._answered = 0
        self.asked_s = float("-inf")
        """When this rank last heard a question, by time.monotonic()."""
        self.asked_last = False
        """Whether the last question was this rank's."""

    @property
    def all_answer(self) -> bool:
        return self._world_size <= ALL_ANSWER

    def answer(self) -> None:
        for number in map(int, self._news.all(ASKED)[self._answered :]):
            self._answered, self.asked_s = self._answered + 1, time.monotonic()
            self.asked_last = self._store.read(f"asker/{number}") == str(self._rank).encode()
            place = self._place()
            if self.all_answer:
                self._store.set(f"where/{number}/{self._rank}", _written(place))
            elif not self.asked_last and not self._is_with_asker(number, place):
                self._take_slot(number, place)

    def ask(self) -> list[Place] | None:
        """Return the places of the ranks that answer; None if another rank asks already."""
        number = self._answered + 1
        mine = str(self._rank)
        if self._store.compare_set(f"asker/{number}", "", mine) != mine.encode():
            return None
        own = self._place()
        self._store.set(f"asked from/{number}", json.dumps(_call(own)))
        self._news.tell(self._store, f"{ASKED}{number}")
        return self._all_places(number) if self.all_answer else [own, *self._other_places(number)]

    def _all_places(self, number: int) -> list[Place]:
        keys = [f"where/{number}/{rank}" for rank in range(self._world_size)]
        missing, deadline = len(keys), time.monotonic() + ANSWERS_WITHIN_S
        while missing and time.monotonic() < deadline:
            self._pause()
            while missing and self._store.check([keys[missing - 1]]):
                missing -= 1
        return self._read(keys)

    def _other_places(self, number: int) -> list[Place]:
        deadline = time.monotonic() + ANSWERS_WITHIN_S
        while time.monotonic() < deadline:
            self._pause()
        return self._read([f"where/{number}/{slot}" for slot in range(SLOTS)])

    def _pause(self) -> None:
        time.sleep(0.05)
        self._beat()
        self.answer()

    def _read(self, keys: list[str]) -> list[Place]:
        texts = map(self._store.read, keys)
        return [Place(**json.loads(text)) for text in texts if text is not None]

    def _is_with_asker(self, number: int, place: Place) -> bool:
        return bool(json.loads(self._store.get(f"asked from/{number}")) == _call(place))

    def _take_slot(self, number: int, place: Place) -> None:
        written = _written(place)
        if self._store.check([f"where/{number}/{SLOTS - 1}"]):
            return
        for slot in range(SLOTS):
            if self._store.compare_set(f"where/{number}/{slot}", "", written) == written.encode():
                return


def _written(place: Place) -> str:
    return json.dumps(asdict(place))


def _call(place: Place) -> list[object]:
    return [place.waits_in, place.line, place.backwards]
