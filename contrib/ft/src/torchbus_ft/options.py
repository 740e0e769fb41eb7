"""What the strategy was given, and what that means on this machine."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass

from torchbus.plugin import UsageError, expect

from torchbus_ft import lighthouse

VARIABLE = "REPLICA_GROUP_ID"


@dataclass(frozen=True)
class Options:
    """How replicas find each other. ``name``: of this replica. ``host``: where others reach it."""

    name: str
    min_replicas: int
    lighthouse: str
    timeout_s: float
    quorum_timeout_s: float
    host: str


@dataclass(frozen=True)
class Given:
    """The arguments of ``FT``. Raises UsageError for those of other types or values."""

    lighthouse: str | None
    replica: str | None
    min_replicas: int
    timeout_s: float
    quorum_timeout_s: float
    host: str | None
    sync_every: int

    def __post_init__(self) -> None:
        expect("replica", self.replica, (str, type(None)), "the name of this replica")
        expect("host", self.host, (str, type(None)), "the address of this machine")
        expect("min_replicas", self.min_replicas, int, "a number of replicas")
        expect("sync_every", self.sync_every, int, "a number of steps")
        for name in ("timeout_s", "quorum_timeout_s"):
            value = getattr(self, name)
            expect(name, value, (int, float), "a number of seconds")
            if value <= 0:
                raise UsageError(f"{name}={value!r} must be more than 0")
        for name in ("min_replicas", "sync_every"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}={getattr(self, name)!r} must be at least 1")

    def settled(self) -> Options:
        """With what the environment says. Raises UsageError without a lighthouse."""
        url = lighthouse.address(self.lighthouse)
        return Options(
            self.replica or os.environ.get(VARIABLE) or uuid.uuid4().hex[:8],
            self.min_replicas,
            url,
            self.timeout_s,
            self.quorum_timeout_s,
            self.host or lighthouse.own_host(url),
        )
