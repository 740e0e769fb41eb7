"""A tracker of a made-up service, and what is sent to it."""

from __future__ import annotations

import threading

from torchbus_log.trackers.tracker import Tracker

TOKEN = "very-secret-token"


class Client(Tracker):
    """A tracker whose client is told what to do by ``plan``: "hang", "fail", or nothing, for each
    kind of call.
    """

    name = "client"

    def __init__(self, *, plan: dict[str, str] | None = None, **policy) -> None:
        super().__init__(**policy)
        self.plan = plan or {}
        self.calls: list[tuple] = []
        self.threads: set[str] = set()
        self.let_go = threading.Event()

    def needs_network(self):
        return "local" not in self.plan

    def _act(self, kind: str, *what: object) -> None:
        self.threads.add(threading.current_thread().name)
        if self.plan.get(kind) == "hang":
            self.let_go.wait()
        if self.plan.get(kind) == "fail":
            raise ConnectionError(f"refused {TOKEN}")
        self.calls.append((kind, *what))

    def open_run(self, session, config, offline):
        assert config["world_size"] == 1
        self._act("offline" if offline else "online")
        return f"run {'offline' if offline else 'online'}"

    def send_metrics(self, metrics, step, epoch):
        self._act("metrics", metrics, step, epoch)

    def send_hyperparameters(self, values):
        self._act("values", values)

    def send_system(self, metrics, time_s):
        self._act("system", metrics, time_s)

    def close_run(self, run, failed):
        self._act("close", run, failed)

    def secrets(self):
        return [TOKEN]


def send(s, count=1):
    for step in range(count):
        s._context.bus.hook.metrics_ready(
            metrics={"loss": 0.5}, step=step, epoch=None, prog_bar=frozenset()
        )


def warned(record) -> list[str]:
    return [str(warning.message) for warning in record]
