"""The active session of this process. There is at most one."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Protocol

from torch.utils.data import get_worker_info

from torchbus.errors import RanksDiverged, UsageError

if TYPE_CHECKING:
    from torchbus.world import World

HELD_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class ActiveSession(Protocol):
    """The interface of the active session to its process."""

    under_command: bool

    @property
    def world(self) -> World: ...
    @property
    def user(self) -> object: ...
    def let_go_in_fork(self) -> None: ...
    def stop_for(self, error: BaseException) -> None: ...


_active: ActiveSession | None = None


def running() -> ActiveSession | None:
    """Return the context of the active session of this process, or None."""
    return _active


def set_current(active: ActiveSession | None) -> None:
    global _active
    _active = active
    RanksDiverged.observers[:] = [] if active is None else [active.stop_for]


def refuse_nesting() -> None:
    """Raise UsageError if a session can't begin here."""
    if get_worker_info() is not None:
        raise UsageError(
            "a session in a DataLoader worker: put it (and the loop) under `if __name__ =="
            " '__main__':`"
        )
    if _active is not None:
        raise UsageError(
            "a session inside a session: `torchbus run` has begun one: run the script by `python`"
            if _active.under_command
            else "a session inside a session: one is active already; end it first, or pass both"
            " sets of plugins to one"
        )


_held = threading.local()


def _hold_signals() -> None:
    """Hold signals back while the process forks.

    A signal to a child that has not detached from the session yet would be mistaken for one to this
    rank.
    """
    held = HELD_SIGNALS if _active is not None else ()
    _held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, held)


def _let_signals_in() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _held.mask)


def _after_fork() -> None:
    if _active is not None:
        _active.let_go_in_fork()
    _let_signals_in()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(
        before=_hold_signals, after_in_parent=_let_signals_in, after_in_child=_after_fork
    )
