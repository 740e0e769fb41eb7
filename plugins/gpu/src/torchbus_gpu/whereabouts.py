"""Where the loop is. The monitor's thread looks at it, so this costs the loop nothing."""

from __future__ import annotations

import threading
from collections import deque

from torchbus_gpu.users_code import Line, loader_line
from torchbus_launch import guard

REMEMBERED_LOOKS = 200


class Whereabouts:
    """Measures how much time the thread that created it spends in a DataLoader.

    It looks at the thread's stack many times per measurement (statistical profiling). With 20 looks
    per interval, a share is exact to about 10 points, and over ten intervals to about 4.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._recent: deque[bool] = deque(maxlen=REMEMBERED_LOOKS)
        self._looks = self._in_loader = 0
        self.loader: Line | None = None

    @property
    def is_sure(self) -> bool:
        """Whether there were enough looks to trust ``recent_share``."""
        return len(self._recent) == REMEMBERED_LOOKS

    @property
    def recent_share(self) -> float:
        """The share of the last looks, from 0 to 1, in which the loop waited for a loader."""
        recent = list(self._recent)
        return sum(recent) / max(1, len(recent))

    def look(self) -> None:
        line = loader_line(guard.of_thread(self._thread))
        self.loader = line or self.loader
        self._recent.append(line is not None)
        self._looks += 1
        self._in_loader += line is not None

    def read(self) -> dict[str, float]:
        """Return the share since the last reading, in percent."""
        looks, in_loader = self._looks, self._in_loader
        self._looks = self._in_loader = 0
        return {"loop_in_loader_pct": 100.0 * in_loader / looks} if looks else {}
