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
    """Over ten measurements in a row: the GPU busy less than half of the time, the loop in the loader more than 30 % of it."""

    def __init__(self, gpu: OwnGpu, whereabouts: Whereabouts, notices: Notices, interval_s: float) -> None:
        self._gpu = gpu
        self._whereabouts = whereabouts
        self._notices = notices
        self._window_s = WINDOW * interval_s
        self._seen: deque[tuple[float, float]] = deque(maxlen=WINDOW)
        self._told = False

    def judge(self, metrics: dict[str, float]) -> None:
        if self._told or "gpu_util_pct" not in metrics or "loop_in_loader_pct" not in metrics:
            return
        self._seen.append((metrics["gpu_util_pct"], metrics["loop_in_loader_pct"]))
        busy_pct, in_loader_pct = (sum(column) / len(self._seen) for column in zip(*self._seen, strict=True))
        if len(self._seen) == WINDOW and busy_pct < LEAST_BUSY_PCT and in_loader_pct > LONG_IN_LOADER_PCT:
            self._told = True
            self._notices.tell(
                f"the GPU ({self._gpu.name}) was busy only {busy_pct:.0f} % of the last {self._window_s:g} s, while the loop waited for its "
                f"DataLoader {in_loader_pct:.0f} % of the time: give the loader more num_workers, or make its samples cheaper. "
                "session(lint=True) says how many workers it would take",
                self._whereabouts.loader,
            )
