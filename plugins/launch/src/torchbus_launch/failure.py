"""The record of the first failure, which all ranks share through the store."""

from __future__ import annotations

import json
import traceback
from dataclasses import asdict, dataclass

from torchbus.errors import PluginError, RankFailed, RanksDiverged

from torchbus_launch.broadcast_log import FAILED, BroadcastLog
from torchbus_launch.store import SealedStore
from torchbus_launch.terminal import say
from torchbus_redaction.redactor import redacted, redacted_traceback

KEY = "failure"
LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Connection refused",
    "gloo",
    "NCCL",
    "Socket",
)


@dataclass(frozen=True)
class Failure:
    """A failure: which rank failed, and how.

    Rank 0 prints ``traceback`` if it is not empty. ``diverged`` is True if no rank failed, but the
    ranks can't continue together, and ``frozen`` if the rank can't exit, so that another process
    must kill it.
    """

    rank: int
    summary: str
    traceback: str = ""
    diverged: bool = False
    frozen: bool = False

    def as_error(self) -> RankFailed | RanksDiverged:
        """Return the error that the other ranks raise."""
        return (
            RanksDiverged(self.summary)
            if self.diverged
            else RankFailed(f"rank {self.rank} failed first: {self.summary}")
        )


def of(rank: int, error: BaseException) -> Failure:
    """Make the record of an exception."""
    text = redacted_traceback(error)
    if isinstance(error, RanksDiverged):
        return Failure(rank, str(error), diverged=True)
    alone = traceback.TracebackException(type(error), error, None)
    vars(alone)["__notes__"] = None  # the notes are in the text already
    return Failure(rank, redacted([*alone.format_exception_only()][-1].strip()), text)


def publish(store: SealedStore, log: BroadcastLog, failure: Failure) -> Failure:
    """Record a failure unless one is recorded already; return the recorded one."""
    recorded = store.compare_set(KEY, "", json.dumps(asdict(failure)))
    log.append(store, FAILED)  # the rank that recorded it may have died before it could announce it
    return Failure(**json.loads(recorded))


def read(store: SealedStore) -> Failure | None:
    """Return the recorded failure, if any."""
    text = store.read(KEY)
    return None if text is None else Failure(**json.loads(text))


def show(failure: Failure) -> None:
    """Print the traceback of the rank that failed, or its error if there is no traceback."""
    if failure.traceback:
        say(failure.traceback, f"[rank {failure.rank}] ")
    else:
        say(f"torchbus: {failure.as_error()}")


def is_consequence(error: BaseException) -> bool:
    """Return whether the error looks like that of a rank whose peer has gone.

    If a plugin's listener failed, its cause is examined.
    """
    while isinstance(error, PluginError) and error.__cause__ is not None:
        error = error.__cause__
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in LOST)
