"""The base of loggers that report to an experiment tracker, and what happens when the tracker fails."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any

from torchbus._bus.arguments import expect
from torchbus._redaction import Redactor
from torchbus._session.notices import warn
from torchbus.errors import PluginError, UsageError
from torchbus.events import hookimpl
from torchbus.trackers.description import describe_run
from torchbus.trackers.nothing import Nothing
from torchbus.trackers.room import NoRoom, has_room
from torchbus.trackers.worker import Worker

if TYPE_CHECKING:
    from torchbus._session.context import Context

RARER_AFTER_FAILURES, RAREST = 5, 64
"""So many calls in a row fail before only every second one is made, then every fourth, and so on."""
RANKS = ("main", "all")


class Tracker:
    """Hears what is logged and hands it to ``send_metrics`` and its like, on a thread of its own.

    A subclass writes ``open_run`` and ``send_metrics``, and whatever it needs of ``send_hyperparameters``, ``send_system``
    and ``close_run``. All of them run on the tracker's thread, one at a time: a slow call never holds up the loop, a
    failing one is counted, and after five failures in a row calls become rare until one succeeds again.

    ``experiment`` is what ``open_run`` returned: the client's own run. On ranks that do not report, and where no start
    succeeded, it is an object that takes every call and does nothing.

    Args:
        ranks: "main": rank 0 reports for all; "all": every rank does.
        on_error: "warn", or "raise" for those who want a run without its tracker to end.
        start_timeout_s: after how many seconds a start counts as failed. It is tried once more with ``offline=True``.
        finish_timeout_s: how long the end of the session waits for what is still to be sent.
    """

    companions: tuple[str, ...] = ("log",)
    name = "tracker"

    def __init__(
        self, *, ranks: str = "main", on_error: str = "warn", start_timeout_s: float = 30.0, finish_timeout_s: float = 60.0
    ) -> None:  # fmt: skip
        if ranks not in RANKS:
            raise UsageError(f"ranks={ranks!r} is unknown: use 'main' or 'all'")
        if on_error not in ("warn", "raise"):
            raise UsageError(f"on_error={on_error!r} is unknown: use 'warn' or 'raise'")
        for name, value in (("start_timeout_s", start_timeout_s), ("finish_timeout_s", finish_timeout_s)):
            expect(name, value, (int, float), "a number of seconds")
        self._ranks = ranks
        self._raises = on_error == "raise"
        self._start_timeout_s = start_timeout_s
        self._finish_timeout_s = finish_timeout_s
        self._worker: Worker | None = None
        self._pid = 0
        self._redactor = Redactor()
        self._calls = self._done = self._failures = self._since_made = self._failures_in_a_row = self._dropped = 0
        self._first_error: BaseException | None = None
        self._attempt: object = None
        self.offline = False
        self.experiment: Any = Nothing()

    # What a subclass writes ------------------------------------------------------------------------------------

    def import_client(self) -> None:
        """Import the client. Runs on the loop's thread, and no time counts: a cold disk is no failed start."""

    def needs_network(self) -> bool:
        """False where the run is made of local files alone: its start has no limit in time, and is tried once."""
        return True

    def open_run(self, session: Context, config: dict[str, Any], offline: bool) -> Any:
        """Start the run, with the session's description, and return it. ``offline``: the start has failed, keep to local
        files. Raise whatever the client raises."""
        raise NotImplementedError

    def send_metrics(self, metrics: dict[str, float], step: int, epoch: int | None) -> None:
        """What ``metrics_ready`` tells."""
        raise NotImplementedError

    def send_hyperparameters(self, values: dict[str, Any]) -> None:
        """What ``s.log_hyperparams`` was given, as plain JSON."""

    def send_system(self, metrics: dict[str, float], time_s: float) -> None:
        """What ``system_metrics`` tells."""

    def close_run(self, run: Any, failed: bool) -> None:
        """End what ``open_run`` returned. ``failed``: an exception leaves the block."""

    def folder(self) -> str | os.PathLike[str] | None:
        """Where the client writes on this machine: while there is no room, nothing is sent, and what is lost is counted."""
        return None

    def secrets(self) -> list[str | None]:
        """What must not stand in any message."""
        return []

    # Events ----------------------------------------------------------------------------------------------------

    @hookimpl
    def session_start(self, session: Context) -> None:
        if not (session.is_main or self._ranks == "all"):
            return
        self._pid = os.getpid()
        self._redactor = session.redactor
        self._redactor.learn(self.secrets())
        config = describe_run(session)
        session.on_close.callback(setattr, sys, "excepthook", sys.excepthook)  # clients put their own there, and leave it
        session.on_close.push(self._finish)
        if self._imported() and not self._started(session, config, False) and self.needs_network():
            self._started(session, config, True)

    @hookimpl
    def metrics_ready(self, metrics: dict[str, float], step: int, epoch: int | None) -> None:
        self._call(self.send_metrics, dict(metrics), step, epoch)

    @hookimpl
    def hyperparameters(self, values: dict[str, Any]) -> None:
        self._call(self.send_hyperparameters, self._redactor.plain(values))

    @hookimpl
    def system_metrics(self, metrics: dict[str, float], time_s: float) -> None:
        self._call(self.send_system, dict(metrics), time_s)

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]]:
        state = "not running" if self._worker is None else "offline, its start failed" if self.offline else "running"
        return {"loggers": [f"{self.name}: {state}; {self._calls} calls, {self._failures} failed, on {self._ranks} rank(s)"]}

    # Inside ----------------------------------------------------------------------------------------------------

    def _imported(self) -> bool:
        try:
            self.import_client()
        except Exception as error:
            self._not_started(error, "nothing is sent to it")
            return False
        return True

    def _started(self, session: Context, config: dict[str, Any], offline: bool) -> bool:
        """Try to start; a client that is still trying after the time is left behind on its thread."""
        self._worker = worker = Worker(f"torchbus-{self.name}")
        self._attempt = attempt = object()
        future = worker.submit(self._open, session, config, offline, attempt)
        assert future is not None
        try:
            future.result(self._start_timeout_s if self.needs_network() else None)
            self.offline = offline
            return True
        except Exception as error:
            self._attempt = self._worker = None
            worker.stop(0.0)
            self._not_started(error, "it goes on offline" if self.needs_network() and not offline else "nothing is sent to it")
            return False

    def _not_started(self, error: Exception, instead: str) -> None:
        told = self._words(error) or f"no answer within {self._start_timeout_s:g} s"
        if self._raises:
            raise PluginError(f"{self.name} did not start: {told}") from None
        warn(f"{self.name} did not start, {instead}: {told}")

    def _open(self, session: Context, config: dict[str, Any], offline: bool, attempt: object) -> None:
        """On the tracker's thread. A start that succeeds after it was given up is ended again, unless the client handed out the
        run that has been started since."""
        run = self.open_run(session, config, offline)
        if self._attempt is attempt:
            self.experiment = run
        elif run is not self.experiment:
            self.close_run(run, True)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Have a call made. Nothing happens in a process that the loop has forked, or once calls have failed too often."""
        if self._worker is None or os.getpid() != self._pid:
            return
        if self._raises and self._first_error is not None:
            raise PluginError(f"{self.name}: {self._words(self._first_error)}")
        if self._is_left_out():
            self._dropped += 1
            return
        self._calls += 1
        future = self._worker.submit(self._made, function, *arguments)
        if future is None:
            self._dropped += 1
        else:
            future.add_done_callback(self._count)

    def _is_left_out(self) -> bool:
        """Whether this call is not made, since those before it failed."""
        many = self._failures_in_a_row - RARER_AFTER_FAILURES
        left_out = many >= 0 and self._since_made + 1 < min(2 ** min(many + 1, RAREST), RAREST)
        self._since_made = self._since_made + 1 if left_out else 0
        return left_out

    def _made(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """On the tracker's thread. A client whose disk is full loses what it is given, without a word or for good: it is not called then."""
        if (folder := self.folder()) is not None and not has_room(folder):
            raise NoRoom(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        return function(*arguments)

    def _count(self, future: Future[Any]) -> None:
        self._done += 1
        error = future.exception()
        if error is None:
            self._failures_in_a_row = 0
            return
        self._failures += 1
        self._failures_in_a_row += not isinstance(error, NoRoom)
        self._first_error = self._first_error or error

    def _finish(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        worker, self._worker = self._worker, None
        if worker is None or os.getpid() != self._pid:
            return
        deadline_s = time.monotonic() + self._finish_timeout_s
        failed = error is not None and not (isinstance(error, SystemExit) and not error.code)
        future = worker.submit(self.close_run, self.experiment, failed)
        try:
            if future is not None:
                future.result(self._finish_timeout_s)
            worker.stop(max(deadline_s - time.monotonic(), 0.1))
        except Exception as problem:
            worker.stop(0.0)
            left = f"it had not finished after {self._finish_timeout_s:g} s, and was left behind ({self._done} of {self._calls} calls done)"
            told = self._words(problem) or left
            self._complain(f"{self.name} did not finish: {told}", error)
        if self._failures or self._dropped:
            first = f" (the first: {self._words(self._first_error)})" if self._first_error else ""
            self._complain(f"{self.name}: {self._failures} of {self._calls} calls failed{first}, {self._dropped} were not made", error)

    def _complain(self, told: str, error: BaseException | None) -> None:
        """At the end: an error for those who want one, unless the block has already ended by one."""
        if self._raises and error is None:
            raise PluginError(told)
        warn(told)

    def _words(self, error: BaseException | None) -> str:
        """An error in a line, less secrets; nothing for one that says nothing (a timeout)."""
        text = " ".join(f"{type(error).__name__}: {error}".split()) if error is not None and str(error) else ""
        return self._redactor.text(text)
