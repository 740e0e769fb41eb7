"""A GPU that is idle while the loop waits for its DataLoader."""

from __future__ import annotations

from collections import deque

from torchbus_gpu.notices import Notices
from torchbus_gpu.sources.own_gpu import OwnGpu
from torchbus_gpu.whereabouts import Whereabouts

WINDOW = 10
LEAST_BUSY_PCT = 50.0
LONG_IN_LOADER_PCT = 30.0


class IdleGpu:
    """Warns if, over ten measurements, the GPU is busy for less than half of the time.

    And if the loop is in the loader for more than 30 % of it.
    """

    def __init__(
        self, gpu: OwnGpu, whereabouts: Whereabouts, notices: Notices, interval_s: float
    ) -> None:
        self._gpu = gpu
        self._whereabouts = whereabouts
        self._notices = notices
        self._window_s = WINDOW * interval_s
        self._seen: deque[tuple[float, float]] = deque(maxlen=WINDOW)
        self._warned = False

    def judge(self, metrics: dict[str, float]) -> None:
        if self._warned or "gpu_util_pct" not in metrics or "loop_in_loader_pct" not in metrics:
            return
        self._seen.append((metrics["gpu_util_pct"], metrics["loop_in_loader_pct"]))
        busy_pct, in_loader_pct = (
            sum(column) / len(self._seen) for column in zip(*self._seen, strict=True)
        )
        if (
            len(self._seen) == WINDOW
            and busy_pct < LEAST_BUSY_PCT
            and in_loader_pct > LONG_IN_LOADER_PCT
        ):
            self._warned = True
            self._notices.warn(
                f"the GPU ({self._gpu.name}) was busy only {busy_pct:.0f} % of the last"
                f" {self._window_s:g} s, while the loop waited for its DataLoader"
                f" {in_loader_pct:.0f} % of the time: give the loader more num_workers, or make its"
                " samples cheaper. session(lint=True) says how many workers it would take",
                self._whereabouts.loader,
            )
