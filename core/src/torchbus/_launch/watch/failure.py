"""The record of the first failure, which all ranks share through the store."""

from __future__ import annotations

import json
import traceback
from dataclasses import asdict, dataclass

from torchbus._launch.store.sealed import SealedStore
from torchbus._redaction import redacted, redacted_source
from torchbus.errors import RankFailed, RanksDiverged

KEY = "failure"
LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Connection refused", "gloo", "NCCL", "Socket")


@dataclass(frozen=True)
class Failure:
    """What happened on which rank. ``traceback`` is shown by rank 0 if it is not empty. ``diverged``: no rank failed,
    but they can't go on together. ``frozen``: it can't end by itself."""

    rank: int
    summary: str
    traceback: str = ""
    diverged: bool = False
    frozen: bool = False

    def as_error(self) -> RankFailed | RanksDiverged:
        """What the other ranks raise."""
        return RanksDiverged(self.summary) if self.diverged else RankFailed(f"rank {self.rank} failed first: {self.summary}")


def of(rank: int, error: BaseException) -> Failure:
    """The failure that an exception is."""
    text = redacted_source("".join(traceback.format_exception(error)))
    if isinstance(error, RanksDiverged):
        return Failure(rank, str(error), diverged=True)
    return Failure(rank, redacted(traceback.format_exception_only(error)[-1].strip()), text)


def publish(store: SealedStore, failure: Failure) -> Failure:
    """Record a failure unless there is one already; returns the one that is recorded."""
    return parse(store.compare_set(KEY, "", json.dumps(asdict(failure))))


def read(store: SealedStore) -> Failure | None:
    """The recorded failure, if any."""
    text = store.read(KEY)
    return None if text is None else parse(text)


def parse(text: bytes) -> Failure:
    return Failure(**json.loads(text))


def is_consequence(error: BaseException) -> bool:
    """Whether the error looks like that of a rank whose peer has gone."""
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in LOST)
