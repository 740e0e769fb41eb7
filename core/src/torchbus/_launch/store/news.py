"""What all guards must hear. A guard waits for the next item in the store and asks for nothing."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from torchbus._launch.watch.looking import leave_to_no_debugger
from torchbus._launch.watch.sockets import connected_to, shut
from torchbus._ranks.world import SharedStore

FAILED, ALL_ENDED = "failed", "all ended"
ENDED, ASKED, REPORTED, WHERE, NOTE = (
    "ended ",
    "asked ",
    "reported ",
    "where ",
    "note ",
)  # what follows belongs to the item
LONGEST_WAIT = timedelta(days=20)  # poll() counts milliseconds in 32 bits
KEEPALIVE_S = 60
LEAVES_WITHIN_S = 1.0
UNSIGNED_AGAIN_S = 0.2


class News:
    """Numbered items in the store, which every rank hears in the same order.

    A thread waits for the next item, and the store answers once it is there. So a rank that hears
    nothing makes no requests, with any number of ranks.

    ``store``: the store that all ranks share; the thread gets a connection of its own.
    ``answer``: what rank 0 answers to a WHERE or a NOTE, which other ranks then find in the store.
    ``lost``: whether the store has gone.
    """

    def __init__(self, store: SharedStore, answer: Callable[[str], str] | None = None) -> None:
        before = connected_to(store.port)
        self._store = store.connection(LONGEST_WAIT)
        self._sockets = connected_to(store.port) - before
        for descriptor in self._sockets:
            _keep_alive(descriptor)
        self._answer = answer
        self._heard: list[str] = []
        self.lost = False
        self._thread = threading.Thread(target=self._run, name="torchbus-news", daemon=True)

    def start(self) -> None:
        leave_to_no_debugger(self._thread)
        self._thread.start()

    def stop(self) -> None:
        """End the thread. It ends by itself after a failure, and after all ranks have ended."""
        self._thread.join(LEAVES_WITHIN_S)
        if self._thread.is_alive():
            shut(self._sockets)
            self._thread.join(LEAVES_WITHIN_S)

    def tell(self, store: SharedStore, item: str) -> None:
        """Let all ranks hear an item, once, also if several ranks tell it.

        ``store``: the caller's connection. Raises RuntimeError if the store has gone.
        """
        if item in self._heard:
            return
        number = len(self._heard) + 1
        while store.compare_set(_name(number), "", item) != item.encode():
            number += 1

    def has(self, item: str) -> bool:
        return item in self._heard

    def all(self, kind: str) -> list[str]:
        """Return what followed the kind, in the order of the items."""
        return [item.removeprefix(kind) for item in self._heard if item.startswith(kind)]

    def _run(self) -> None:
        while not self.lost and not {FAILED, ALL_ENDED} & {*self._heard[-1:]}:
            with contextlib.suppress(RuntimeError):  # also after the longest wait
                self._store.wait(_name(len(self._heard) + 1))
            try:
                item = self._store.read(_name(len(self._heard) + 1))
            except RuntimeError:
                self.lost = True
                return
            if item is None:
                time.sleep(UNSIGNED_AGAIN_S)
            else:
                self._heard.append(item.decode())
                if self._answer is not None and self._heard[-1].startswith((WHERE, NOTE)):
                    with contextlib.suppress(RuntimeError):
                        self._store.set(self._heard[-1], self._answer(self._heard[-1]))


def _name(number: int) -> str:
    return f"news/{number}"


def _keep_alive(descriptor: int) -> None:
    """Let the kernel show routers that a silent connection is in use."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as copy:
        copy.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if sys.platform == "linux":
            copy.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
            copy.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S)
