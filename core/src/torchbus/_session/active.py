"""The session that is active in this process: there is one at the most."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from torch.utils.data import get_worker_info

from torchbus.errors import UsageError

if TYPE_CHECKING:
    from torchbus._session.context import Context
    from torchbus.session import Session

HELD_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_active: Context | None = None


def current() -> Session | None:
    """The session that is active in this process, if any."""
    return None if _active is None else _active.user


def context() -> Context | None:
    """Its context."""
    return _active


def set_current(active: Context | None) -> None:
    global _active
    _active = active


def refuse_nesting() -> None:
    """Raise UsageError where a session can't begin."""
    if get_worker_info() is not None:
        raise UsageError("a session in a DataLoader worker: put it (and the loop) under `if __name__ == '__main__':`")
    if _active is not None:
        raise UsageError("a session inside a session: one is active already; end it first, or pass both sets of plugins to one")


def _hold_signals() -> None:
    """A signal that meets a process just forked, which has not let go yet, would be taken for one to this rank."""
    if _active is not None:
        signal.pthread_sigmask(signal.SIG_BLOCK, HELD_SIGNALS)


def _let_signals_in() -> None:
    if _active is not None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_SIGNALS)


def _after_fork() -> None:
    if _active is not None:
        _active.block.let_go_in_fork()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_SIGNALS)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_hold_signals, after_in_parent=_let_signals_in, after_in_child=_after_fork)
