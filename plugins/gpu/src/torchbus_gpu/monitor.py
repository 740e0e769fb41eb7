"""The monitor's thread on each rank: measures, logs and runs the diagnoses."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from torchbus.plugin import Context, TorchbusError

from torchbus_gpu.diagnoses import IdleGpu, LocalWork, SlowRank, Whereabouts
from torchbus_gpu.sources import Host, LocalGpu
from torchbus_gpu.users_code import Notices

LOOKS_PER_INTERVAL = 20
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.01, 0.2


Source = Host | Whereabouts | LocalGpu | LocalWork


class Monitor:
    """Runs measurements and diagnoses; created and started by the thread of the loop."""

    def __init__(self, session: Context, interval_s: float) -> None:
        pause_s = min(max(interval_s / LOOKS_PER_INTERVAL, SHORTEST_PAUSE_S), LONGEST_PAUSE_S)
        self._session = session
        self._interval_s = interval_s
        self._looks_per_interval = max(1, round(interval_s / pause_s))
        self._looks = 0
        self._started_s = time.monotonic()
        self.notices = Notices()
        self.whereabouts = Whereabouts()
        self.latest: dict[str, float] = {}
        self._gpu = LocalGpu(session, self.notices)
        self._local_work = LocalWork(session.device) if session.world_size > 1 else None
        self._sources: list[Source] = [Host(), self.whereabouts, self._gpu]
        self._judges: list[IdleGpu | SlowRank] = [
            IdleGpu(self._gpu, self.whereabouts, self.notices, interval_s)
        ]
        if self._local_work is not None:
            self._sources.append(self._local_work)
            self._judges.append(SlowRank(session, self.notices))
        self._ticker = Ticker(self._tick, pause_s)

    def listeners(self) -> list[tuple[str, object]]:
        """Return the listeners to the loop: with several ranks, the clock of own work."""
        return [] if self._local_work is None else [("own_work", self._local_work)]

    def start(self) -> None:
        self._ticker.start()

    def stop(self) -> None:
        self._ticker.stop()
        self._judges.clear()  # one of them holds the ranks' store
        self._gpu.close()

    def describe(self) -> str:
        gpu = f", {self._gpu.name} by UUID" if self._gpu.name else ""
        return f"every {self._interval_s:g} s, on each rank: CPU, memory, time in the loader{gpu}"

    def _tick(self) -> None:
        with suppress(Exception):  # the loop's stack changes meanwhile
            self.whereabouts.look()
        self._looks += 1
        if self._looks % self._looks_per_interval == 0:
            self._measure()

    def _measure(self) -> None:
        self.latest = {
            name: value
            for source in list(self._sources)
            for name, value in self._guarded(source).items()
        }
        try:
            self._session.bus.hook.system_metrics(
                metrics=dict(self.latest), time_s=time.monotonic() - self._started_s
            )
        except Exception as error:  # a logger has failed
            self.notices.warn(
                str(error)
                if isinstance(error, TorchbusError)
                else f"measurements could not be sent: {error!r}. Training continues"
            )
        for judge in list(self._judges):
            try:
                judge.judge(self.latest)
            except Exception as error:  # a judge that fails must not end the measurements
                self._judges.remove(judge)
                self.notices.warn(
                    f"the monitor's {type(judge).__name__} stopped: {error!r}. Training continues"
                )

    def _guarded(self, source: Source) -> dict[str, float]:
        try:
            return source.read()
        except Exception as error:  # an error in here must not stop training
            self._sources.remove(source)
            self.notices.warn(
                f"{type(source).__name__} is no longer measured: {error!r}. Training continues"
            )
            return {}


STOP_WITHIN_S = 5.0


class Ticker:
    """Calls ``tick`` every ``period_s`` seconds from a daemon thread.

    A forked child has no thread, and ``stop`` does nothing there.
    """

    def __init__(self, tick: Callable[[], None], period_s: float) -> None:
        self._tick = tick
        self._period_s = period_s
        self._pid = os.getpid()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="torchbus-gpu", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wait some seconds for it: a driver's call can hang."""
        # a child that was forked while the thread held the event's lock would wait forever
        if os.getpid() == self._pid:
            self._stopped.set()
            self._thread.join(STOP_WITHIN_S)

    def _run(self) -> None:
        while not self._stopped.wait(self._period_s):
            self._tick()
