"""The guard: a thread of each rank that stops the loop after a failure, a signal or a hang."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType

from torchbus.errors import RankFailed

from torchbus_launch.broadcast_log import FairClock, Looking, leave_to_no_debugger
from torchbus_launch.terminal import say
from torchbus_launch.threads import calls_of

LOOK_EVERY_S = 0.2
DELIVER_AFTER_S = 1.0
KILL_AFTER_S = 5.0
INSIST_AFTER_S = 2.0  # when to repeat the interrupt, within KILL_AFTER_S
RELEASE_WITHIN_S = 3.0
LOCAL_AFTER_S = 3.0  # by then, a loop that caught its own error has left or continues
HANDLED_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
INTERRUPT = signal.SIGURG  # scripts do not handle it, and processes without a handler ignore it
FORCED = "does not leave native code and is ended by force"


class Leave(SystemExit):
    """Ends a loop that caught the reason to stop and continued; not an ``Exception``."""


class Guard:
    """Calls ``look()`` repeatedly, and stops this rank if it returns a reason.

    The guard raises the reason in the main thread. If the loop catches it and continues, the guard
    raises ``Leave``. An error of the guard itself also ends the rank: without a guard, the rank
    could wait forever.

    Args:
        report_signal: records a signal that this rank has received.
        beat: called as often as ``look()``, and still called while this rank leaves.
        away: returns an error, or None, for a look that has not returned for this many seconds.
        report: records a reason that this rank has detected.
        before_kill: prints why the job ends, before this rank is ended by force.

    ``seen_signal`` is the last SIGINT, SIGTERM or SIGHUP. ``handled`` are the signals that a plugin
    handles.
    """

    def __init__(
        self,
        rank: int,
        look: Callable[[], BaseException | None],
        report_signal: Callable[[int], None],
        *,
        beat: Callable[[], None] = lambda: None,
        away: Callable[[float], BaseException | None] = lambda seconds: None,
        report: Callable[[BaseException], object] = lambda error: None,
        before_kill: Callable[[], object] = lambda: None,
    ) -> None:
        self._rank = rank
        self._look = look
        self._report_signal = report_signal
        self._beat = beat
        self._away = away
        self._report = report
        self._before_kill = before_kill
        self._handled_before = sys.exc_info()[1]
        self._raised = False
        self._late: int | None = None
        self._looking = Looking(self._look_once, LOOK_EVERY_S)
        self._releases: list[Callable[[], None]] = []
        self._after_raise: list[Callable[[], None]] = []
        self._loop, self._loop_id = threading.current_thread(), threading.get_native_id()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="torchbus-guard", daemon=True)
        self._handlers: dict[int, object] = {}
        self._undo_signals: Callable[[], None] = lambda: None
        self._wakeup: socket.socket | None = None
        self._waker: socket.socket | None = None
        self.reason: BaseException | None = None
        self.seen_signal: int | None = None
        self.handled: set[int] = set()
        self.leaving = False

    def start(self) -> None:
        if self._loop is threading.main_thread():
            self._listen_to_signals()
        leave_to_no_debugger(self._thread)
        self._beat()  # so that a rank that freezes at once counts as begun
        self._thread.start()

    def on_release(self, release: Callable[[], None]) -> None:
        """Register a function that ends collectives of this rank; the guard's thread calls it."""
        self._releases.append(release)

    def release(self) -> None:
        """End all collectives of this rank, and thereby those of peers that wait on it.

        NCCL's abort may itself wait for a kernel that does not end.
        """
        ending = threading.Thread(target=self._release, name="torchbus-release", daemon=True)
        try:
            ending.start()
        except RuntimeError:  # the interpreter ends
            self._release()
        else:
            ending.join(RELEASE_WITHIN_S)

    def _release(self) -> None:
        while self._releases:
            with contextlib.suppress(Exception):
                self._releases.pop()()

    def stop_for(self, error: BaseException) -> None:
        """End this rank for an error that is about to be raised, even if the loop catches it."""
        if not self.leaving and self.reason is None:
            self.reason = error

    def on_raise(self, callback: Callable[[], None]) -> None:
        """Register a callback; the guard's thread calls it after it interrupted the main thread."""
        self._after_raise.append(callback)

    def stop_looking(self) -> None:
        self._looking.stop()  # first, because the guard handles a look that hangs
        self._stop.set()
        if self._waker is not None:
            with contextlib.suppress(OSError):  # its buffer is full, so the thread is awake
                self._waker.send(b"\0")
        self._thread.join()

    def stop(self) -> None:
        self.stop_looking()
        self._undo_signals()

    def deliver_late(self) -> None:
        """Deliver a signal that came while the block ended: ``SystemExit``, as inside the block."""
        if self._late is not None and signal.getsignal(self._late) is signal.SIG_DFL:
            raise SystemExit(128 + self._late)
        if self._late is not None:
            signal.raise_signal(self._late)

    def has_seen_sigint(self) -> bool:
        """Return whether a SIGINT came; Python may handle it before the guard does.

        Also return True where that is unknown: in a thread, and if a plugin handles the signal.
        """
        if self._wakeup is None or self.reason is not None or self._is_others(signal.SIGINT):
            return True
        clock = FairClock(0.1)
        while self.seen_signal is None and clock.seconds() < DELIVER_AFTER_S:
            time.sleep(0.01)
        return self.seen_signal is not None

    def forget(self) -> None:
        """Undo the signal handling in a process that was forked from this rank.

        Signals to that process do not concern this rank.
        """
        with contextlib.suppress(ValueError):  # forked from a thread other than the main one
            self._undo_signals()

    def _run(self) -> None:
        try:
            self._looking.start()
            self._watch()
        except BaseException as error:
            self.reason = RankFailed(f"the guard of rank {self._rank} failed: {error!r}")
            self._end_loop(self.reason)

    def _watch(self) -> None:
        clock, signalled_s, ended = FairClock(), 0.0, False
        raised_s: float | None = None
        while not self._stop.is_set():
            number = self._next_signal()
            if number is not None:
                self.seen_signal, signalled_s = number, clock.seconds()
            reason = self._away(self._looking.away_s()) or self._looking.found()
            if self.reason is not None and raised_s is None:
                raised_s = clock.seconds()
            if ended or self.leaving:
                continue
            ended = True
            if self.seen_signal and clock.seconds() - signalled_s > DELIVER_AFTER_S:
                # the main thread has not reacted: it waits in a collective
                self._report_signal(self.seen_signal)
                self._end_loop(None)
            elif reason is not None:
                self.reason = self.reason or reason
                self._end_loop(self.reason)
            elif self.reason is not None and clock.seconds() - (raised_s or 0.0) > LOCAL_AFTER_S:
                self._raised = True
                self._report(self.reason)
                self._end_loop(self.reason, within_s=0.0)
            else:
                ended = False

    def beat(self) -> None:
        """Show that this rank and its guard are alive. Call it during a look that takes long."""
        self._looking.still_there()
        self._beat()

    def _look_once(self) -> BaseException | None:
        self.beat()
        return None if self.leaving else self._look()

    def _end_loop(self, reason: BaseException | None, within_s: float = DELIVER_AFTER_S) -> None:
        self.release()
        if reason is not None and not self._loop_leaves_within(within_s):
            self._interrupt_loop()
            for callback in self._after_raise:
                with contextlib.suppress(Exception):
                    callback()
            if not self._loop_leaves_within(INSIST_AFTER_S):
                self._interrupt_loop()
        elif reason is None:
            self._loop_leaves_within(within_s + INSIST_AFTER_S)
        if not self._loop_leaves_within(KILL_AFTER_S - INSIST_AFTER_S):
            self._kill_myself()

    def _interrupt_loop(self) -> None:
        if self._wakeup is not None and self._loop.ident is not None:
            signal.pthread_kill(self._loop.ident, INTERRUPT)

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        """Raise the reason; the second time, raise ``Leave``, which loops don't catch.

        Nothing is raised while the loop handles an exception: its ``finally`` may take a moment.
        """
        if self.leaving or self.reason is None:
            return
        handled = sys.exc_info()[1]
        is_leaving = handled is not None and handled is not self._handled_before
        first, self._raised = not self._raised, True
        if not is_leaving:
            raise self.reason if first else Leave(1)

    def _loop_leaves_within(self, seconds: float) -> bool:
        """Wait for the loop's thread to leave; count only seconds in which it could run."""
        clock = FairClock(0.1, f"/proc/self/task/{self._loop_id}")
        while clock.seconds() < seconds and not self.leaving and not self._stop.wait(0.02):
            pass
        return self.leaving or self._stop.is_set()

    def _kill_myself(self) -> None:
        innermost = [
            (call.f_code.co_filename, call.f_lineno or 0, call.f_code.co_name, None)
            for call in reversed(calls_of(self._loop.ident)[:3])
        ]
        where = "".join(traceback.format_list(innermost))
        text = f"torchbus: rank {self._rank} {FORCED}; it is at\n{where}"
        self._before_kill()
        say(text)
        os._exit(1)

    def _next_signal(self) -> int | None:
        if self._wakeup is None:
            self._stop.wait(LOOK_EVERY_S)
            return None
        try:
            received = self._wakeup.recv(64)
        except TimeoutError:
            return None
        numbers = [n for n in received if n in HANDLED_SIGNALS and not self._is_others(n)]
        return numbers[-1] if numbers and self.reason is None else None

    def _is_others(self, number: int) -> bool:
        """Return whether a plugin, or the script inside the block, handles the signal."""
        return number in self.handled or signal.getsignal(number) != self._handlers.get(number)

    def _listen_to_signals(self) -> None:
        wakeup, waker = self._wakeup, self._waker = socket.socketpair()
        wakeup.settimeout(LOOK_EVERY_S)
        waker.setblocking(False)
        old_fd = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        old_handlers = {
            number: signal.signal(number, self._on_end) for number in (signal.SIGTERM, *_hangup())
        }
        old_handlers[INTERRUPT] = signal.signal(INTERRUPT, self._on_interrupt)
        self._handlers = {number: signal.getsignal(number) for number in HANDLED_SIGNALS}

        def undo() -> None:
            for number, handler in old_handlers.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(old_fd)
            wakeup.close()
            waker.close()

        self._undo_signals = undo

    def _on_end(self, number: int, frame: FrameType | None) -> None:
        if self.leaving:
            self._late = number
            return
        if self.reason is None:
            self.seen_signal = number
        raise self.reason if self.reason is not None else SystemExit(128 + number)


def _hangup() -> list[signal.Signals]:
    """Return SIGHUP, unless its handling was already changed: nohup ignores it."""
    return [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL else []
