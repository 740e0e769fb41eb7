"""A thread per rank that sees what the main thread can't: signals and failures of others while it waits in a collective.

It closes this rank's own connections to its peers, which ends every collective that waits on them, here and there.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from torchbus import thread_frames
from torchbus.errors import RankFailed

LOOK_EVERY_S = 0.2
DELIVER_AFTER_S = 1.0
KILL_AFTER_S = 5.0
HEARD = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
FORCED = "does not leave native code and is ended by force"


class Guard:
    """Looks with ``look()``, which returns the reason why this rank has to stop, or None.

    The reason is raised in the main thread. ``seen_signal`` is the last SIGINT, SIGTERM or SIGHUP; those ``handled`` are a plugin's business.
    An error of the guard's own ends the rank as well: unguarded, it could wait for ever.
    """

    def __init__(self, rank: int, look: Callable[[], BaseException | None], report_signal: Callable[[int], None]) -> None:
        self._rank = rank
        self._look = look
        self._report_signal = report_signal
        self._releases: list[Callable[[], None]] = []
        self._main = threading.main_thread()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="torchbus-guard", daemon=True)
        self._undo_signals: Callable[[], None] = lambda: None
        self._wakeup: socket.socket | None = None
        self.reason: BaseException | None = None
        self.seen_signal: int | None = None
        self.handled: set[int] = set()
        self.leaving = False

    def start(self) -> None:
        if threading.current_thread() is self._main:
            self._listen_to_signals()
        self._thread.start()

    def on_release(self, release: Callable[[], None]) -> None:
        """``release()`` ends this rank's collectives; called from the guard's thread."""
        self._releases.append(release)

    def release(self) -> None:
        """End all collectives of this rank, and so those of its peers that wait on it."""
        while self._releases:
            with contextlib.suppress(Exception):
                self._releases.pop()()

    def stop_looking(self) -> None:
        self._stop.set()
        self._thread.join()

    def stop(self) -> None:
        self.stop_looking()
        self._undo_signals()

    def forget(self) -> None:
        """In a process that was forked from this rank: its signals are its own, and none of this rank's business."""
        with contextlib.suppress(ValueError):  # forked from another thread than the main one
            self._undo_signals()

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:
            self.reason = RankFailed(f"the guard of rank {self._rank} failed: {error!r}")
            self._end_main(self.reason)

    def _watch(self) -> None:
        signal_time = 0.0
        while not self._stop.is_set():
            number = self._next_signal()
            if number is not None:
                self.seen_signal, signal_time = number, time.monotonic()
            if self.seen_signal and not self.leaving and time.monotonic() - signal_time > DELIVER_AFTER_S:
                self._report_signal(self.seen_signal)  # the main thread has not reacted: it waits in a collective
                return self._end_main(None)
            reason = None if self.leaving else self._look()
            if reason is not None:
                self.reason = reason
                return self._end_main(reason)

    def _end_main(self, reason: BaseException | None) -> None:
        self.release()
        if not self._main_leaves_within(DELIVER_AFTER_S) and reason is not None and self._wakeup is not None:
            signal.pthread_kill(self._main.ident, signal.SIGTERM)  # type: ignore[arg-type]
        if not self._main_leaves_within(KILL_AFTER_S):
            self._kill_myself()

    def _main_leaves_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.leaving and not self._stop.wait(0.02):
            pass
        return self.leaving or self._stop.is_set()

    def _kill_myself(self) -> None:
        innermost = thread_frames.of_thread(self._main.ident)[:3]
        where = "".join(traceback.format_list(traceback.StackSummary.extract((frame, frame.f_lineno) for frame in reversed(innermost))))
        text = f"torchbus: rank {self._rank} {FORCED}; it is at\n{where}"
        with contextlib.suppress(Exception):
            print(text, file=sys.__stderr__, flush=True)
        os._exit(1)

    def _next_signal(self) -> int | None:
        if self._wakeup is None:
            self._stop.wait(LOOK_EVERY_S)
            return None
        if not select.select([self._wakeup], [], [], LOOK_EVERY_S)[0]:
            return None
        numbers = [n for n in self._wakeup.recv(64) if n in HEARD - self.handled]
        return numbers[-1] if numbers and self.reason is None else None

    def _listen_to_signals(self) -> None:
        self._wakeup, writer = socket.socketpair()
        writer.setblocking(False)
        old_fd = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        old_handlers = {number: signal.signal(number, self._on_end) for number in (signal.SIGTERM, *_hangup())}
        wakeup = self._wakeup

        def undo() -> None:
            for number, handler in old_handlers.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(old_fd)
            wakeup.close()
            writer.close()

        self._undo_signals = undo

    def _on_end(self, number: int, frame: FrameType | None) -> None:
        if self.leaving:
            return
        if self.reason is None:
            self.seen_signal = number
        raise self.reason if self.reason is not None else SystemExit(128 + number)


def _hangup() -> list[signal.Signals]:
    """SIGHUP, unless somebody has decided about it: nohup ignores it."""
    return [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL else []


def sockets_opened() -> set[int]:
    """Descriptors of this process's connected sockets; Linux only, elsewhere none."""
    return set(_connected_sockets())


def _connected_sockets() -> Iterator[int]:
    with contextlib.suppress(FileNotFoundError):
        for entry in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{entry}").startswith("socket:"):
                    yield int(entry)


def shut(descriptors: set[int]) -> None:
    """End the connections of these sockets (listening ones are left alone)."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            copy: Any = socket.socket(fileno=os.dup(descriptor))
            with copy:
                if not copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    copy.shutdown(socket.SHUT_RDWR)
