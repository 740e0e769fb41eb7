"""Diagnoses from the measurements: a GPU that waits for the loader, a slow rank."""

from __future__ import annotations

import json
import platform
import threading
import time
from collections import deque
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
from torchbus.plugin import Context, hookimpl

from torchbus_device import accelerators
from torchbus_gpu.sources import LocalGpu
from torchbus_gpu.users_code import Notices, SourceLine, loader_line
from torchbus_launch import threads

WINDOW = 10
LEAST_BUSY_PCT = 50.0
LONG_IN_LOADER_PCT = 30.0


class IdleGpu:
    """Warns if, over ten measurements, the GPU is busy for less than half of the time, and the loop
    is in the loader for more than 30 % of it.
    """

    def __init__(
        self, gpu: LocalGpu, whereabouts: Whereabouts, notices: Notices, interval_s: float
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


STEPS_PER_INTERVAL = 8


class LocalWork:
    """Measures the local work of some steps of each interval.

    The rank's own work (loader, forward, optimizer) lasts from the end of a backward to the start
    of the next one. A step lasts to the end of the next one.
    """

    def __init__(self, device: torch.device) -> None:
        self._clock = HostClock() if device.type == "cpu" else DeviceClock(device)
        self._wanted = STEPS_PER_INTERVAL
        self._end: Any = None
        self._begin: Any = None
        self._steps: deque[tuple[Any, Any, Any]] = deque(maxlen=STEPS_PER_INTERVAL)
        self.local_s = self.step_s = 0.0

    @hookimpl(tryfirst=True)
    def before_backward(self) -> None:
        if self._end is not None:
            self._begin = self._clock.mark()

    @hookimpl(trylast=True)
    def after_backward(self) -> None:
        if self._wanted <= 0:
            self._end = self._begin = None
            return
        now = self._clock.mark()
        if self._begin is not None:
            self._steps.append((self._end, self._begin, now))
            self._wanted -= 1
        self._end, self._begin = now, None

    def read(self) -> dict[str, float]:
        """Return median seconds of own work and of a step, of the steps since the last reading."""
        pairs = [
            (self._clock.seconds(start, begin), self._clock.seconds(start, end))
            for start, begin, end in list(self._steps)
        ]
        known = [(ours, step) for ours, step in pairs if ours is not None and step is not None]
        if known:
            self._steps.clear()
            self.local_s, self.step_s = (median(column) for column in zip(*known, strict=True))
        self._wanted = STEPS_PER_INTERVAL
        return {"own_work_s": self.local_s, "step_s": self.step_s} if known else {}


class HostClock:
    """A host clock. The loop calls ``mark``, which never blocks; the monitor ``seconds``."""

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, begin: float, end: float) -> float | None:
        return end - begin


class DeviceClock:
    """Marks in the device's own queue: a rank waits for gradients there, not on the host."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> accelerators.Event | None:
        if accelerators.is_capturing(self._device):
            return None
        event = accelerators.event(self._device, timed=True)
        event.record()
        return event

    def seconds(
        self, begin: accelerators.Event | None, end: accelerators.Event | None
    ) -> float | None:
        """Return the time between two marks, or None while it is not known."""
        if begin is None or end is None or not end.query():
            return None
        return float(begin.elapsed_time(end)) / 1000


ROUNDS = 5
SLOWER = 1.25
PART_OF_STEP = 0.1
REPORTS_PER_S = 1000
"""The number for all ranks together. One store serves them, and can answer about 50 times more."""


@dataclass(frozen=True)
class Report:
    """One rank's seconds per step: ``local_s`` is its work, ``step_s`` the total."""

    host: str
    device: str
    local_s: float
    step_s: float
    in_loader_pct: float
    sm_clock_mhz: float | None = None
    temperature_c: float | None = None


class SlowRank:
    """Finds a slow rank: each rank writes its report into the shared store, and rank 0 reads all.

    The loop sends nothing, and there is no collective. In large worlds reports are rarer, so that
    the store has as much to do, and rank 0 as much to read, in any world.
    """

    def __init__(self, session: Context, notices: Notices) -> None:
        self._rank = session.rank
        self._device = str(session.device)
        self._keys = [str(rank) for rank in range(session.world_size)]
        self._pause_s = session.world_size / REPORTS_PER_S
        self._next_s = 0.0
        self._store = session.world.shared.within("gpu")
        self._notices = notices
        self._slow_before: list[int] = []
        self._warned: set[int] = set()

    def judge(self, metrics: dict[str, float]) -> None:
        if "own_work_s" not in metrics or time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + self._pause_s
        mine = Report(
            platform.node(),
            self._device,
            metrics["own_work_s"],
            metrics["step_s"],
            metrics.get("loop_in_loader_pct", 0.0),
            metrics.get("gpu_sm_clock_mhz"),
            metrics.get("gpu_temperature_c"),
        )
        self._store.set(self._keys[self._rank], json.dumps(asdict(mine)))
        reported = self._store.read_all(self._keys) if self._rank == 0 else None
        if reported is not None:
            self._compare([Report(**json.loads(text)) for text in reported])

    def _compare(self, reports: list[Report]) -> None:
        slow = slow_rank(reports)
        self._slow_before = [*self._slow_before, slow][-ROUNDS:] if slow is not None else []
        if slow is not None and slow not in self._warned and self._slow_before == [slow] * ROUNDS:
            self._warned.add(slow)
            self._notices.warn(_message(slow, reports))


def slow_rank(reports: list[Report]) -> int | None:
    """Return the rank with the longest local work, if it is much slower than the others.

    That is a quarter more than the others' median, and a tenth of a step more.
    """
    rank = max(range(len(reports)), key=lambda one: reports[one].local_s)
    others_s = median(report.local_s for other, report in enumerate(reports) if other != rank)
    excess_s = reports[rank].local_s - others_s
    return (
        rank
        if reports[rank].local_s > SLOWER * others_s
        and excess_s > PART_OF_STEP * reports[rank].step_s
        else None
    )


def _message(slow: int, reports: list[Report]) -> str:
    report, others = reports[slow], [one for rank, one in enumerate(reports) if rank != slow]
    facts = [
        f"{report.in_loader_pct:.0f} % of its time is in the loader"
        f" ({median(one.in_loader_pct for one in others):.0f} % elsewhere)"
    ]
    clocks = [one.sm_clock_mhz for one in others if one.sm_clock_mhz]
    if report.sm_clock_mhz and clocks:
        facts.append(
            f"its GPU runs at {report.sm_clock_mhz:.0f} MHz ({median(clocks):.0f} elsewhere),"
            f" {report.temperature_c or 0:.0f} C"
        )
    return (
        f"rank {slow} ({report.device} of {report.host}) is slow: {1000 * report.local_s:.1f} ms"
        " of local work per step, where the others take"
        f" {1000 * median(one.local_s for one in others):.1f} ms and then wait for it in"
        f" backward; {'; '.join(facts)}"
    )


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
        self.loader: SourceLine | None = None

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
        line = loader_line(threads.calls_of(self._thread))
        self.loader = line or self.loader
        self._recent.append(line is not None)
        self._looks += 1
        self._in_loader += line is not None

    def read(self) -> dict[str, float]:
        """Return the share since the last reading, in percent."""
        looks, in_loader = self._looks, self._in_loader
        self._looks = self._in_loader = 0
        return {"loop_in_loader_pct": 100.0 * in_loader / looks} if looks else {}
