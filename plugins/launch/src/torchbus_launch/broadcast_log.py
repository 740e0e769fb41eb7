"""Append-only log in the store: all ranks see its entries in the same order."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torchbus_launch.store import SealedStore


class Looking:
    """Calls ``look()`` repeatedly in a thread; ``found()`` is its first result that is not None."""

    def __init__(self, look: Callable[[], BaseException | None], pause_s: float) -> None:
        self._look = look
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._clock = FairClock()
        self._looks = self._looks_seen = 0
        self._came_back_s = 0.0
        self._thread = threading.Thread(target=self._run, name="torchbus-looking", daemon=True)
        self._error: BaseException | None = None
        self._found: BaseException | None = None

    def start(self) -> None:
        leave_to_no_debugger(self._thread)
        self._thread.start()

    def still_there(self) -> None:
        """Report progress, from a look that may take long."""
        self._looks += 1

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def found(self) -> BaseException | None:
        """Return the first result that is not None, or raise the error that ended the thread."""
        if self._error is not None:
            raise self._error
        return self._found

    def away_s(self) -> float:
        """Return the seconds since the current look began; call it often."""
        now_s = self._clock.seconds()
        if self._looks != self._looks_seen or not self._thread.is_alive():
            self._looks_seen, self._came_back_s = self._looks, now_s
        return now_s - self._came_back_s

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._pause_s):
                found = self._look()
                self._found = self._found or found
                self.still_there()
        except BaseException as error:
            self._error = error


def leave_to_no_debugger(thread: threading.Thread) -> None:
    """Mark a thread that debuggers must not stop.

    At a breakpoint, debugpy and PyCharm stop all threads without this mark. The guard of a
    debugged rank must still show that the rank lives.
    """
    vars(thread).update(pydev_do_not_trace=True, is_pydev_daemon_thread=True)


class FairClock:
    """Counts the seconds in which this process could run.

    It skips the time for which the process was stopped, frozen with its container, asleep with its
    laptop, or without a processor. It also skips the time for which a thread waited for a
    processor; ``task`` is that thread's folder in /proc. Call ``seconds()`` often: one call adds at
    most ``step_s``.
    """

    def __init__(self, step_s: float = 1.0, task: str = "") -> None:
        self._step_s = step_s
        self._task = task
        self._asked_s, self._retained_waiting_s = time.monotonic(), self._waiting_s()
        self._passed_s = 0.0

    def seconds(self) -> float:
        """Return the seconds counted since the clock was made."""
        now, retained_waiting_s = time.monotonic(), self._waiting_s()
        passed_s = min(now - self._asked_s, self._step_s) - (
            retained_waiting_s - self._retained_waiting_s
        )
        self._passed_s += max(passed_s, 0.0)
        self._asked_s, self._retained_waiting_s = now, retained_waiting_s
        return self._passed_s

    def _waiting_s(self) -> float:
        """Return how long the thread has waited for a processor in all; 0 outside Linux."""
        if not self._task:
            return 0.0
        try:
            with open(f"{self._task}/schedstat", encoding="ascii") as file:
                return int(file.read().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return 0.0


def sockets_opened() -> set[int]:
    """Return the descriptors of this process's sockets; an empty set outside Linux."""
    found = set()
    for entry in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{entry}").startswith("socket:"):
                found.add(int(entry))
    return found


def connected_to(port: int) -> set[int]:
    """Return the descriptors of this process's sockets that are connected to a port."""
    return {descriptor for descriptor in sockets_opened() if ports_of(descriptor)[1:] == [port]}


def ports_of(descriptor: int) -> list[int]:
    """Return the ports of a TCP socket: that of this end and, if connected, that of the other end.

    Returns [] for sockets of other families: the peer of a Unix socket is a path.
    """
    found = []
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as copy:
        if copy.family in (socket.AF_INET, socket.AF_INET6):
            found.append(int(copy.getsockname()[1]))
            found.append(int(copy.getpeername()[1]))
    return found


def shut(descriptors: set[int]) -> None:
    """End the connections of these sockets; leave listening sockets open."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            copy: Any = socket.socket(fileno=os.dup(descriptor))
            with copy:
                if not copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    copy.shutdown(socket.SHUT_RDWR)


FAILED, LOOPS_ENDED, ALL_ENDED = "failed", "loops ended", "all ended"
ENDED, ASKED, REPORTED, WHERE, NOTE = (
    "ended ",
    "asked ",
    "reported ",
    "where ",
    "note ",
)  # the rest of an item is its payload
LONGEST_WAIT = timedelta(days=20)  # poll() counts milliseconds in 32 bits
KEEPALIVE_S = 60
LEAVES_WITHIN_S = 1.0
UNSIGNED_AGAIN_S = 0.2


class BroadcastLog:
    """Append-only log in the store: every rank gets its entries in the same order.

    A thread blocks in the store until the next entry exists, so an idle rank makes no requests,
    with any number of ranks.

    ``store`` is the store that all ranks share; the thread opens a separate connection to it.
    ``answer`` computes rank 0's reply to a WHERE or a NOTE, which other ranks read from the store.
    ``lost`` is True once the store has gone.
    """

    def __init__(self, store: SealedStore, answer: Callable[[str], str] | None = None) -> None:
        before = connected_to(store.port)
        self._store = store.connection(LONGEST_WAIT)
        self._sockets = connected_to(store.port) - before
        for descriptor in self._sockets:
            _keep_alive(descriptor)
        self._answer = answer
        self._items: list[str] = []
        self.lost = False
        self._thread = threading.Thread(target=self._run, name="torchbus-news", daemon=True)

    def start(self) -> None:
        leave_to_no_debugger(self._thread)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread. It also stops after a failure, and after all ranks have ended."""
        self._thread.join(LEAVES_WITHIN_S)
        if self._thread.is_alive():
            shut(self._sockets)
            self._thread.join(LEAVES_WITHIN_S)

    def append(self, store: SealedStore, item: str) -> None:
        """Append an entry; entries that several ranks append appear once.

        ``store`` is the caller's connection. Raises RuntimeError if the store has gone.
        """
        if item in self._items:
            return
        number = len(self._items) + 1
        while store.compare_set(_name(number), "", item) != item.encode():
            number += 1

    def has(self, item: str) -> bool:
        return item in self._items

    def all(self, kind: str) -> list[str]:
        """Return the payloads of all entries of a kind, in order."""
        return [item.removeprefix(kind) for item in self._items if item.startswith(kind)]

    def _run(self) -> None:
        while not self.lost and not {FAILED, ALL_ENDED} & {*self._items[-1:]}:
            with contextlib.suppress(RuntimeError):  # also raised after LONGEST_WAIT
                self._store.wait(_name(len(self._items) + 1))
            try:
                item = self._store.read(_name(len(self._items) + 1))
            except RuntimeError:
                self.lost = True
                return
            if item is None:
                time.sleep(UNSIGNED_AGAIN_S)
            else:
                self._items.append(item.decode())
                if self._answer is not None and self._items[-1].startswith((WHERE, NOTE)):
                    with contextlib.suppress(RuntimeError):
                        self._store.set(self._items[-1], self._answer(self._items[-1]))


def _name(number: int) -> str:
    return f"news/{number}"


def _keep_alive(descriptor: int) -> None:
    """Let the kernel send keepalives, so that routers don't drop a silent connection."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as copy:
        copy.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if sys.platform == "linux":
            copy.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
            copy.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S)
