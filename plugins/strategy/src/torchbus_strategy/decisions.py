"""Decisions of rank 0 for all ranks, such as a time limit.

No rank may stop while another starts a step that needs it. So rank 0 decides one place of the loop
ahead: at place ``n - 1`` it writes what all ranks do at place ``n``. The others read it at place
``n``, which they can't reach before rank 0 has taken part in the step between. They pass most
places without a look: each decision names the next place, a quarter of a second later.
"""

from __future__ import annotations

import json
import re
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from torchbus.plugin import Context, RankFailed, SharedStore, UsageError

LOOK_EVERY_S = 0.25
MAX_STRIDE = 1000
MAX_DECISIONS = 1000  # stay in the store: no rank is further behind rank 0
CLOCK = r"(?:(?:(\d+)[:-])?(\d+):)?(\d+):(\d+)"
CLOCK_UNITS = (("days", 86400, 0), ("hours", 3600, 24), ("minutes", 60, 60), ("seconds", 1, 60))


def clock_seconds(option: str, clock: str) -> float | None:
    """Convert "30:00", "02:00:00", and with days "1:12:00:00" or "1-12:00:00".

    Returns None for another form. Raises UsageError if a part is too large, as in "01:61:00".
    """
    found = re.fullmatch(CLOCK, clock)
    if found is None:
        return None
    given = [
        (int(part), *unit)
        for part, unit in zip(found.groups(), CLOCK_UNITS, strict=True)
        if part is not None
    ]
    total = sum(number * unit_s for number, _, unit_s, _ in given)
    for number, name, _, end in given[1:]:
        if number >= end:
            right = f"{total // 3600:02}:{total // 60 % 60:02}:{total % 60:02}"
            raise UsageError(
                f"{option}={clock!r}: it has {number} {name}, but at most {end - 1} fit there. If"
                f" you mean {total} seconds, write {right!r}"
            )
    return float(total)


class Decisions:
    """Calls ``decide`` on rank 0, and gives all ranks what it returns, at the same place.

    ``name`` says what is decided, in the keys of the store.
    """

    def __init__(self, session: Context, name: str, decide: Callable[[], Any]) -> None:
        self._session = session
        self._name = name
        self._decide = decide
        self._place = 0
        self._next = 2
        self._decision: tuple[Any, int] = (None, self._next)
        self._written: deque[str] = deque()
        self._begun_s = time.monotonic()

    def look(self) -> Any:
        """Return the decision for this place, which every rank reaches, or None without one."""
        self._place += 1
        if self._session.world_size == 1:
            return self._decide()
        decided = None
        if self._place == self._next:
            mine = self._session.is_main
            decided, self._next = self._decision if mine else self._read(self._next)
        if self._session.is_main and self._place == self._next - 1:
            self._decision = self._decide(), self._next + self._stride()
            self._write(self._key(self._next))
        return decided

    def _write(self, key: str) -> None:
        store = self._session.world.shared
        store.set(key, json.dumps(self._decision))
        self._written.append(key)
        if len(self._written) > MAX_DECISIONS:
            store.delete_key(self._written.popleft())

    def _read(self, place: int) -> tuple[Any, int]:
        job, key = self._session.job, self._key(place)
        assert job is not None
        found: list[bytes] = []

        def is_there(store: SharedStore) -> bool:
            found[:] = store.read_all([key]) or ()
            return bool(found)

        if not job.wait_until(is_there, self._session.timeout.total_seconds()):
            raise RankFailed(
                f"rank 0 did not reach the end of step {place}, where rank {self._session.rank}"
                " is waiting for it. Look at rank 0's output; if it may be away that long, pass a"
                " longer timeout_s"
            )
        decided, following = json.loads(found[0])
        return decided, following

    def _stride(self) -> int:
        """Return how many places pass in about a quarter of a second."""
        seconds = (time.monotonic() - self._begun_s) / self._place
        return max(1, min(MAX_STRIDE, int(LOOK_EVERY_S / max(seconds, 1e-6))))

    def _key(self, place: int) -> str:
        return f"{self._name}/asked/{place}"
