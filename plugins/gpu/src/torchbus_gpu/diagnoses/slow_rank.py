"""Find a rank for which all others wait."""

from __future__ import annotations

import json
import platform
import time
from dataclasses import asdict, dataclass
from statistics import median

from torchbus.plugin import Context

from torchbus_gpu.notices import Notices

ROUNDS = 5
SLOWER = 1.25
PART_OF_STEP = 0.1
REPORTS_PER_S = 1000
"""Of all ranks together: one store serves them, and answers about 50 times as many requests."""


@dataclass(frozen=True)
class Report:
    """The figures of one rank. Per step, ``own_s`` is its own work, and ``step_s`` is all, in s."""

    host: str
    device: str
    own_s: float
    step_s: float
    in_loader_pct: float
    sm_clock_mhz: float | None = None
    temperature_c: float | None = None


class SlowRank:
    """Each rank puts its report into the shared store, and rank 0 reads all at once.

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
        told = self._store.read_all(self._keys) if self._rank == 0 else None
        if told is not None:
            self._compare([Report(**json.loads(text)) for text in told])

    def _compare(self, reports: list[Report]) -> None:
        slow = slow_rank(reports)
        self._slow_before = [*self._slow_before, slow][-ROUNDS:] if slow is not None else []
        if slow is not None and slow not in self._warned and self._slow_before == [slow] * ROUNDS:
            self._warned.add(slow)
            self._notices.warn(_words(slow, reports))


def slow_rank(reports: list[Report]) -> int | None:
    """Return the rank that works longest by itself, if it is much slower than the others.

    That is a quarter more than the others' median, and a tenth of a step more.
    """
    rank = max(range(len(reports)), key=lambda one: reports[one].own_s)
    others_s = median(report.own_s for other, report in enumerate(reports) if other != rank)
    excess_s = reports[rank].own_s - others_s
    return (
        rank
        if reports[rank].own_s > SLOWER * others_s
        and excess_s > PART_OF_STEP * reports[rank].step_s
        else None
    )


def _words(slow: int, reports: list[Report]) -> str:
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
        f"rank {slow} ({report.device} of {report.host}) is slow: {1000 * report.own_s:.1f} ms of"
        " its own work per step, where the others take"
        f" {1000 * median(one.own_s for one in others):.1f} ms and then wait for it in backward;"
        f" {'; '.join(facts)}"
    )
