"""The base class of loggers that report to an experiment tracker, which may fail."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from torchbus._bus.attributes import Plugin
from torchbus._bus.markers import hookimpl
from torchbus._bus.options import expect
from torchbus._redaction import Redactor
from torchbus._session.notices import warn
from torchbus.errors import PluginError, UsageError
from torchbus.trackers.calls import Calls, in_one_line
from torchbus.trackers.client import Client
from torchbus.trackers.description import describe_run
from torchbus.trackers.nothing import Nothing
from torchbus.trackers.room import NoRoom, has_room
from torchbus.trackers.worker import Worker

if TYPE_CHECKING:
    from torchbus._session.context import Context
    from torchbus.trackers.histogram import Values
    from torchbus.trackers.image import Image

RANKS = ("main", "all")


class Tracker(Client, Plugin):
    """Receives what the loop logs, and sends it on a thread of its own.

    A subclass writes ``open_run`` and ``send_metrics``. If it needs them, it also writes
    ``send_hyperparameters``, ``send_image``, ``send_histogram``, ``send_system`` and ``close_run``.
    All of them run on the tracker's thread, one at a time, so a slow call never blocks the loop.
    The tracker counts calls that fail. After five failures in a row it makes calls rarely, until
    one succeeds again.

    ``experiment``: what ``open_run`` returned, the client's own run. On ranks that do not report,
    or if no start succeeded, it is an object that accepts every call and does nothing.

    Args:
        ranks: "main": rank 0 reports for all; "all": every rank reports.
        on_error: "warn", or "raise" to end a session whose tracker fails.
        start_timeout_s: seconds after which a start counts as failed. The tracker then tries once
            more with ``offline=True``.
        finish_timeout_s: seconds that the end of the session may wait for calls still to be made.
    """

    companions: tuple[str, ...] = ("log",)
    name = "tracker"

    def __init__(
        self,
        *,
        ranks: str = "main",
        on_error: str = "warn",
        start_timeout_s: float = 30.0,
        finish_timeout_s: float = 60.0,
    ) -> None:
        if ranks not in RANKS:
            raise UsageError(f"ranks={ranks!r} is unknown: use 'main' or 'all'")
        if on_error not in ("warn", "raise"):
            raise UsageError(f"on_error={on_error!r} is unknown: use 'warn' or 'raise'")
        expect("start_timeout_s", start_timeout_s, (int, float), "a number of seconds")
        expect("finish_timeout_s", finish_timeout_s, (int, float), "a number of seconds")
        self._ranks = ranks
        self._raises = on_error == "raise"
        self._start_timeout_s = start_timeout_s
        self._finish_timeout_s = finish_timeout_s
        self._worker: Worker | None = None
        self._pid = 0
        self._redactor = Redactor()
        self._calls = Calls()
        self._attempt: object = None
        self.offline = False
        self.experiment: Any = Nothing()

    # Events --------------------------------------------------------------------------------------

    @hookimpl
    def session_start(self, session: Context) -> None:
        if not self._reports(session):
            return
        self._pid = os.getpid()
        self._redactor = session.redactor
        self._redactor.learn(self.secrets())
        config = describe_run(session)
        # clients replace it and do not restore it
        session.on_close.callback(setattr, sys, "excepthook", sys.excepthook)
        session.on_close.push(self._finish)
        if self._imported() and not self._started(session, config, False) and self.needs_network():
            self._started(session, config, True)

    @hookimpl(optionalhook=True)
    def metrics_ready(self, metrics: dict[str, float], step: int, epoch: int | None) -> None:
        self._call(self.send_metrics, dict(metrics), step, epoch)

    @hookimpl(optionalhook=True)
    def hyperparameters(self, values: dict[str, object]) -> None:
        self._call(self.send_hyperparameters, self._redactor.plain(values))

    @hookimpl(optionalhook=True)
    def image_ready(self, name: str, image: Image, step: int) -> None:
        if self._worker is not None:
            image.pixels()  # copied now: the loop may change the tensor
            self._call(self.send_image, name, image, step)

    @hookimpl(optionalhook=True)
    def histogram_ready(self, name: str, values: Values, step: int) -> None:
        if self._worker is not None:
            self._call(self.send_histogram, name, values.counted(), step)

    @hookimpl(optionalhook=True)
    def system_metrics(self, metrics: dict[str, float], time_s: float) -> None:
        self._call(self.send_system, dict(metrics), time_s)

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]]:
        state = (
            "not running"
            if self._worker is None
            else "offline, its start failed"
            if self.offline
            else "running"
        )
        return {
            "loggers": [
                f"{self.name}: {state}; {self._calls.made} calls, {self._calls.failures} failed,"
                f" on {self._ranks} rank(s)"
            ]
        }

    # Inside --------------------------------------------------------------------------------------

    def _reports(self, session: Context) -> bool:
        return session.is_main or self._ranks == "all"

    def _imported(self) -> bool:
        try:
            self.import_client()
        except Exception as error:
            self._not_started(error, "nothing is sent to it")
            return False
        return True

    def _started(self, session: Context, config: dict[str, object], offline: bool) -> bool:
        """Try to start the run, and return whether that succeeded.

        A client that has not started in time is left behind on its thread.
        """
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
            goes_on = self.needs_network() and not offline
            self._not_started(error, "it goes on offline" if goes_on else "nothing is sent to it")
            return False

    def _not_started(self, error: Exception, instead: str) -> None:
        told = self._words(error) or f"no answer within {self._start_timeout_s:g} s"
        if self._raises:
            raise PluginError(f"{self.name} did not start: {told}") from None
        warn(f"{self.name} did not start, {instead}: {told}")

    def _open(
        self, session: Context, config: dict[str, object], offline: bool, attempt: object
    ) -> None:
        """Open the run, on the tracker's thread.

        If the start succeeds only after the tracker gave it up, close that run. Do not close it if
        the client returned the same run for the later start.
        """
        run = self.open_run(session, config, offline)
        if self._attempt is attempt:
            self.experiment = run
        elif run is not self.experiment:
            self.close_run(run, True)

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        """Hand a call to the tracker's thread.

        It does nothing in a process that the loop has forked. After many failures it skips calls.
        """
        calls = self._calls
        if self._worker is None or os.getpid() != self._pid:
            return
        if self._raises and calls.first_error is not None:
            raise PluginError(f"{self.name}: {self._words(calls.first_error)}")
        if not calls.leaves_out():
            calls.begun(self._worker.submit(self._made, function, *arguments))

    def _made(self, function: Callable[..., object], *arguments: object) -> object:
        """Make a call, on the tracker's thread; raise NoRoom if the disk is full.

        With a full disk, a client may lose the data silently, or stop working permanently.
        """
        if (folder := self.folder()) is not None and not has_room(folder):
            raise NoRoom(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        return function(*arguments)

    def _finish(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
            left = (
                f"it had not finished after {self._finish_timeout_s:g} s, and was left behind"
                f" ({self._calls.done} of {self._calls.made} calls done)"
            )
            self._complain(f"{self.name} did not finish: {self._words(problem) or left}", error)
        if lost := self._calls.lost(self._words):
            self._complain(f"{self.name}: {lost}", error)

    def _complain(self, told: str, error: BaseException | None) -> None:
        """Report a problem at the end: raise it if on_error="raise", otherwise warn.

        It also warns if the block already ended with an error.
        """
        if self._raises and error is None:
            raise PluginError(told)
        warn(told)

    def _words(self, error: BaseException | None) -> str:
        """Return an error as one line without secrets; "" for one without a text (a timeout)."""
        return self._redactor.text(in_one_line(error))
