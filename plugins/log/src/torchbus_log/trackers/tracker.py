"""``Tracker``, the base class of loggers: sends records to a service on a separate thread."""

from __future__ import annotations

import errno
import inspect
import os
import re
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from queue import Full, Queue
from typing import TYPE_CHECKING, Any, ClassVar

from torchbus.plugin import Plugin, PluginError, UsageError, expect, hookimpl, warn

from torchbus_log.trackers import retries
from torchbus_log.trackers.values import describe_run
from torchbus_redaction.redactor import Redactor
from torchbus_strategy import random_streams

if TYPE_CHECKING:
    from torchbus.plugin import Context

    from torchbus_log.trackers.values import Histogram, Image, Values


COLOUR = re.compile(r"\x1b\[[0-9;]*m")
RARER_AFTER_FAILURES, RAREST = 5, 64
"""After 5 failures in a row, every second call is made, then every fourth, down to every 64th."""


class CallCounts:
    """The counts of a tracker's calls.

    ``made`` counts calls handed to the tracker's thread, also those that it could not accept.
    ``done`` counts calls that have returned or raised, and ``failures`` those that have raised.
    ``dropped`` counts calls that were never made.
    """

    def __init__(self) -> None:
        self.made = self.done = self.failures = self.dropped = 0
        self.first_error: BaseException | None = None
        self._failures_in_a_row = self._since_made = 0

    @property
    def go_well(self) -> bool:
        """Whether the last call has not failed."""
        return not self._failures_in_a_row

    def leaves_out(self) -> bool:
        """Return whether to skip the next call, because earlier calls failed."""
        many = self._failures_in_a_row - RARER_AFTER_FAILURES
        left_out = many >= 0 and self._since_made + 1 < min(2 ** min(many + 1, RAREST), RAREST)
        self._since_made = self._since_made + 1 if left_out else 0
        self.dropped += left_out
        return left_out

    def begun(self, future: Future[object] | None) -> None:
        """Count a call. ``future`` is None if the thread did not accept it."""
        self.made += 1
        if future is None:
            self.dropped += 1
        else:
            future.add_done_callback(self._count)

    def lost(self, describe: Callable[[BaseException | None], str]) -> str:
        """Say how many calls were lost, and why the first failed. Return "" if none was lost."""
        if not (self.failures or self.dropped):
            return ""
        first = f" (the first: {describe(self.first_error)})" if self.first_error else ""
        return f"{self.failures} of {self.made} calls failed{first}, {self.dropped} were not made"

    def _count(self, future: Future[object]) -> None:
        self.done += 1
        error = future.exception()
        if error is None:
            self._failures_in_a_row = 0
            return
        self.failures += 1
        self._failures_in_a_row += not isinstance(error, NoDiskRoom)
        self.first_error = self.first_error or error


def in_one_line(error: BaseException | None) -> str:
    """Return an error's text without line breaks and colours, or "" if it has no text."""
    if error is None or not str(error):
        return ""
    return " ".join(COLOUR.sub("", f"{type(error).__name__}: {error}").split())


ENOUGH_BYTES = 64 << 10


class NoDiskRoom(OSError):
    """Raised when a call is skipped because the disk is full."""


def has_room(folder: str | os.PathLike[str]) -> bool:
    """Return whether a few records still fit on the disk of this folder, which need not exist yet.

    Returns True if the system does not report the free space.
    """
    if not hasattr(os, "statvfs"):
        return True
    path = Path(folder).absolute()
    try:
        found = os.statvfs(next(one for one in (path, *path.parents) if one.exists()))
    except (OSError, StopIteration):
        return True
    return found.f_bavail * found.f_frsize >= ENOUGH_BYTES or found.f_blocks == 0


CALLS_WAITING_AT_MOST = 10_000
Call = tuple["Future[object]", Callable[..., object], tuple[object, ...]]


class Worker:
    """A daemon thread, so that a client can't block the loop or the end of the process."""

    def __init__(self, name: str) -> None:
        self._calls: Queue[Call | None] = Queue(CALLS_WAITING_AT_MOST)
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, function: Callable[..., object], *arguments: object) -> Future[object] | None:
        """Queue a call, and return its future, or None if too many calls are already waiting."""
        future: Future[object] = Future()
        try:
            self._calls.put_nowait((future, function, arguments))
        except Full:
            return None
        return future

    def stop(self, timeout_s: float) -> None:
        """Let the thread end after the waiting calls, and wait at most ``timeout_s`` for it."""
        try:
            self._calls.put_nowait(None)
        except Full:
            return
        self._thread.join(timeout_s)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function, arguments = call
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function(*arguments))
            except BaseException as error:
                future.set_exception(error)
            del call, future, function, arguments


class NullObject:
    """Accepts every call, item and attribute, and does nothing.

    So ``logger.experiment["a/b"].append(1)`` works on every rank.
    """

    def __getattr__(self, name: str) -> NullObject:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: object, **kwargs: object) -> NullObject:
        return self

    def __getitem__(self, key: object) -> NullObject:
        return self

    def __setitem__(self, key: object, value: object) -> None:
        pass

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "<no run on this rank>"


@contextmanager
def same_draws() -> Iterator[None]:
    """Restore the loop's random state afterwards, as a client may draw random numbers inside."""
    drawn = random_streams.read()
    try:
        yield
    finally:
        random_streams.write(drawn)


def new_run_name() -> str:
    """Return "YYYYMMDD-HHMMSS-xxxx", in local time. For ``chosen_by_rank0``."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def chosen_by_rank0(session: Context, key: str, choose: Callable[[], str]) -> str:
    """Return, on every rank, the text that ``choose`` returns on rank 0.

    All ranks must call this. It uses the store and no collective.
    """
    if session.world_size == 1:
        return choose()
    store = session.world.shared
    if session.is_main:
        store.set(key, choose())
    return str(store.get(key).decode())


def refuse_passed(logger: object, options: Mapping[str, object], passed: Mapping[str, str]) -> None:
    """Raise UsageError if ``options`` has an argument that the logger itself gives to the client.

    ``passed`` maps these arguments to what to write instead.
    """
    for name in (name for name in options if name in passed):
        raise UsageError(
            f"{type(logger).__name__}(options={{{name!r}: ...}}): the logger itself gives {name!r}"
            f" to the client. Use {passed[name]}"
        )


def new_folder(root: Path, name: str) -> Path:
    """Make and return the folder ``root/name``, or "name-2", "name-3" and so on if it exists.

    Raises OSError if it can't be made.
    """
    for number in range(1, 1000):
        folder = root / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise FileExistsError(f"{root} has 999 runs named {name!r}: pass another name=")


class Client:
    """The interface to a tracker's client.

    The calls that open, feed and close a run are made on the tracker's thread, one at a time.
    """

    def import_client(self) -> None:
        """Import the client.

        This runs on the loop's thread without a time limit, so that a start does not fail because
        of a slow disk.
        """

    def needs_network(self) -> bool:
        """Return False if the run consists of local files only.

        Such a start has no time limit, and is tried only once.
        """
        return True

    def open_run(self, session: Context, config: dict[str, object], offline: bool) -> Any:
        """Start the run with the session's description ``config``, and return it.

        With ``offline``, the first start has failed, so use only local files. Do not catch the
        client's errors.
        """
        raise NotImplementedError

    def send_metrics(self, metrics: dict[str, float], step: int, epoch: int | None) -> None:
        """Send the arguments of ``metrics_ready``."""
        raise NotImplementedError

    def send_hyperparameters(self, values: dict[str, object]) -> None:
        """Send the arguments of ``s.log_hyperparams``, as plain JSON."""

    def send_image(self, name: str, image: Image, step: int) -> None:
        """Send a picture of ``s.log_image``. Its ``pixels()`` are on the host already."""

    def send_histogram(self, name: str, histogram: Histogram, step: int) -> None:
        """Send a histogram of ``s.log_histogram``."""

    def send_system(self, metrics: dict[str, float], time_s: float) -> None:
        """Send the arguments of ``system_metrics``."""

    def close_run(self, run: Any, failed: bool) -> None:
        """End the run that ``open_run`` returned. ``failed`` is True if the block has raised."""

    def folder(self) -> str | os.PathLike[str] | None:
        """Return the local folder that the client writes to, or None.

        While its disk is full, the tracker skips calls and counts them as failed.
        """
        return None

    def address(self) -> str | None:
        """Return the server's address, for messages, or None if only the client knows it."""
        return None

    def is_turned_away(self, error: BaseException) -> bool:
        """Return whether the service has rejected a call, and may accept it later.

        Such a call is made again, after pauses. By default this looks for a status such as 429 or
        503 on the error and on the errors that led to it.
        """
        return retries.is_turned_away(error)

    def secrets(self) -> list[str | None]:
        """Return values that must not appear in any message."""
        return []


RANKS = ("main", "all")


class Tracker(Client, Plugin):
    """Receives what the loop logs, and sends it on a separate thread.

    A subclass implements ``open_run`` and ``send_metrics`` and, as needed,
    ``send_hyperparameters``, ``send_image``, ``send_histogram``, ``send_system`` and ``close_run``.
    All of them run on the tracker's thread, one at a time, so a slow call never blocks the loop. A
    call that the service rejects temporarily (429, 503) is made again, up to five times, before
    later calls. The tracker counts calls that fail. After five failures in a row it makes calls
    rarely, until one succeeds again.

    ``experiment`` is the client's run, which ``open_run`` returned. On ranks that do not report, or
    if no start succeeded, it is an object that accepts every call and does nothing.

    Args:
        ranks: "main" if rank 0 reports for all ranks, or "all" if every rank reports.
        on_error: "warn", or "raise" to end a session whose tracker fails.
        start_timeout_s: seconds after which a start counts as failed. The tracker then tries again
            with ``offline=True``.
        finish_timeout_s: seconds that the end of the session waits at most for the remaining calls.

    Raises:
        UsageError: if an option is unknown, or has a wrong type or value.
    """

    companions: tuple[str, ...] = ("log",)
    name = "tracker"

    names_elsewhere: ClassVar[Mapping[str, str]] = {}
    """Options that users look for under another name, and what to write instead."""

    def __init__(
        self,
        *,
        ranks: str = "main",
        on_error: str = "warn",
        start_timeout_s: float = 30.0,
        finish_timeout_s: float = 60.0,
        **unknown: object,
    ) -> None:
        for name in unknown:
            mine, common = (inspect.getfullargspec(one).kwonlyargs for one in (type(self), Tracker))
            known = dict.fromkeys([*mine, *common])
            remedy = self.names_elsewhere.get(name, ", ".join(known))
            raise UsageError(f"{type(self).__name__} has no option {name!r}: use {remedy}")
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
        self._calls = CallCounts()
        self._attempt: object = None
        self.offline = False
        self.experiment: Any = NullObject()

    @classmethod
    def has_all_ranks(cls, session: Context) -> bool:
        """Whether every rank reports to a logger of this class, and not only rank 0."""
        loggers = [one for _, one in session.bus.plugins() if isinstance(one, cls)]
        return any(one._ranks == "all" for one in loggers)

    # Events --------------------------------------------------------------------------------------

    @hookimpl
    def session_start(self, session: Context) -> None:
        if not self._reports(session):
            return
        self._pid = os.getpid()
        self._redactor = session.redactor
        self._redactor.learn(self.secrets())
        config = describe_run(session)
        # clients replace sys.excepthook and do not restore it
        session.on_close.callback(setattr, sys, "excepthook", sys.excepthook)
        session.on_close.push(self._finish)
        with same_draws():
            if (
                self._imported()
                and not self._started(session, config, False)
                and self.needs_network()
            ):
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
            image.pixels()  # copied now, as the loop may change the tensor
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
        return not session.dry_run and (session.is_main or self._ranks == "all")

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
            if isinstance(error, UsageError):  # no other start could succeed
                raise
            goes_on = self.needs_network() and not offline
            self._not_started(error, "it continues offline" if goes_on else "nothing is sent to it")
            return False

    def _not_started(self, error: Exception, instead: str) -> None:
        place = f" from {self.address()}" if self.address() else ""
        silent = f"no answer{place} within {self._start_timeout_s:g} s"
        reported = self._error_line(error) or silent
        if self._raises:
            raise PluginError(f"{self.name} did not start: {reported}") from None
        warn(f"{self.name} did not start, {instead}: {reported}")

    def _open(
        self, session: Context, config: dict[str, object], offline: bool, attempt: object
    ) -> None:
        """Open the run, on the tracker's thread.

        If this start succeeds only after the tracker gave it up, close its run, unless the client
        returned the same run for the later start.
        """
        run = self.open_run(session, config, offline)
        if self._attempt is attempt:
            self.experiment = run
        elif run is not self.experiment:
            self.close_run(run, True)

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        """Hand a call to the tracker's thread.

        Does nothing in a process that the loop has forked. After many failures, skips some calls.
        """
        calls = self._calls
        if self._worker is None or os.getpid() != self._pid:
            return
        if self._raises and calls.first_error is not None:
            raise PluginError(f"{self.name}: {self._error_line(calls.first_error)}")
        if not calls.leaves_out():
            calls.begun(self._worker.submit(self._made, function, *arguments))

    def _made(self, function: Callable[..., object], *arguments: object) -> object:
        """Make a call, on the tracker's thread, and repeat it while the service rejects it.

        Raises NoDiskRoom if the disk is full, because a client may then lose the data silently, or
        stop working permanently.
        """
        if (folder := self.folder()) is not None and not has_room(folder):
            raise NoDiskRoom(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        for pause_s in retries.PAUSES_S if self._calls.go_well else ():
            try:
                return function(*arguments)
            except Exception as error:
                if not self.is_turned_away(error):
                    raise
                time.sleep(retries.pause_s(error, pause_s))
        return function(*arguments)

    def _finish(self, kind: object, error: BaseException | None, trace: object) -> None:
        worker, self._worker = self._worker, None
        if worker is None or os.getpid() != self._pid:
            return
        deadline_s = time.monotonic() + self._finish_timeout_s
        failed = error is not None and not (isinstance(error, SystemExit) and not error.code)
        try:
            with same_draws():
                future = worker.submit(self.close_run, self.experiment, failed)
                if future is not None:
                    future.result(self._finish_timeout_s)
                worker.stop(max(deadline_s - time.monotonic(), 0.1))
        except Exception as problem:
            worker.stop(0.0)
            left = (
                f"it had not finished after {self._finish_timeout_s:g} s, and was left behind"
                f" ({self._calls.done} of {self._calls.made} calls done)"
            )
            self._complain(
                f"{self.name} did not finish: {self._error_line(problem) or left}", error
            )
        if lost := self._calls.lost(self._error_line):
            self._complain(f"{self.name}: {lost}", error)

    def _complain(self, reported: str, error: BaseException | None) -> None:
        """Report a problem at the end: raise it with ``on_error="raise"``, otherwise warn.

        If the block ended with an error, this only warns.
        """
        if self._raises and error is None:
            raise PluginError(reported)
        warn(reported)

    def _error_line(self, error: BaseException | None) -> str:
        """Return an error as one line without secrets, or "" if it has no text (a timeout)."""
        return self._redactor.text(in_one_line(error))
