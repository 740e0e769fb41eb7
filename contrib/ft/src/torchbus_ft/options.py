"""Checks the strategy's options, and completes them from the environment."""

from __future__ import annotations

import os
import socket
import uuid
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from torchbus.plugin import Context, LaunchError, UsageError, expect

from torchbus_launch import secret

LIGHTHOUSE = "TORCHFT_LIGHTHOUSE"
NONE = (
    "strategy='ft' needs a lighthouse, by which replicas find each other: start one with"
    " `torchft_lighthouse --min_replicas 1`, and name it by FT(lighthouse='http://HOST:29510') or"
    f" by {LIGHTHOUSE}"
)
SILENT = (
    "the lighthouse at {} does not answer: {}. Start it with `torchft_lighthouse --min_replicas 1`,"
    " and check its address and the firewall. Nothing was trained yet"
)


def address(given: str | None) -> str:
    """Return the lighthouse's URL: the argument, or else TORCHFT_LIGHTHOUSE.

    Raises UsageError if there is none, or if it is not a URL with a port.
    """
    expect("lighthouse", given, (str, type(None)), "the URL of a lighthouse")
    found = given or os.environ.get(LIGHTHOUSE)
    if not found:
        raise UsageError(NONE)
    try:
        parts = urlsplit(found)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port:
            return found
    except ValueError:
        pass
    raise UsageError(f"lighthouse={found!r} is not a URL with a port, such as 'http://host:29510'")


def reach(url: str, timeout_s: float) -> None:
    """Raise LaunchError if no server listens at the URL."""
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 0), timeout_s).close()
    except OSError as error:
        raise LaunchError(SILENT.format(url, error)) from None


def local_host(url: str) -> str:
    """Return the address from which this machine reaches the lighthouse. Nothing is sent.

    Raises LaunchError if the lighthouse's name has no address, or there is no route to it.
    """
    parts = urlsplit(url)
    try:
        family, kind, _, _, place = socket.getaddrinfo(
            parts.hostname, parts.port, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind) as found:
            found.connect(place)
            return str(found.getsockname()[0])
    except OSError as error:
        raise LaunchError(SILENT.format(url, error)) from None


VARIABLE = "REPLICA_GROUP_ID"
REPLICA_STRATEGIES = ("ddp", "fsdp")
NOT_INSTALLED = (
    "replica_strategy='fsdp' needs torchbus-sharded, which is not installed: pip install"
    " torchbus-sharded"
)
ONE_RANK = (
    "replica_strategy='fsdp' with one rank in a replica: there is nothing to shard over. Pass"
    " devices=2 or more, or leave replica_strategy out"
)
OF_FSDP = (
    "FT({}=...) with replica_strategy='fsdp' has no effect: fsdp averages in a replica. Give"
    " loss_reduction, loss_weight and backend to FSDP(...), as in session(FSDP(...),"
    " FT(replica_strategy='fsdp')), and leave others out"
)
BUFFERS = (
    "FT(sync_buffers=...) has no effect: all ranks get the buffers of rank 0 of the first replica"
    " after each backward. Leave it out"
)
TWO_WAYS = (
    "gradient_algorithm={!r} with replica_strategy='fsdp': torchft averages whole parameters, and"
    " a rank has shards. Leave one of them out"
)


@dataclass(frozen=True)
class ReplicaOptions:
    """How this replica finds the others.

    ``name`` is this replica's name, and ``host`` the address where others reach it. ``key`` is the
    secret that this user's replicas share.
    """

    name: str
    min_replicas: int
    lighthouse: str
    timeout_s: float
    quorum_timeout_s: float
    host: str
    key: bytes = field(repr=False)


@dataclass(frozen=True)
class FTArguments:
    """The arguments of ``FT``. Raises UsageError for a wrong type or value.

    ``of_strategy`` are the names of the arguments that FT gives to ``Strategy``.
    """

    lighthouse: str | None
    replica: str | None
    min_replicas: int
    timeout_s: float
    quorum_timeout_s: float
    host: str | None
    sync_every: int
    replica_strategy: str
    of_strategy: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        expect("replica", self.replica, (str, type(None)), "the name of this replica")
        expect("host", self.host, (str, type(None)), "the address of this machine")
        expect("min_replicas", self.min_replicas, int, "a number of replicas")
        expect("sync_every", self.sync_every, int, "a number of steps")
        if self.replica_strategy not in REPLICA_STRATEGIES:
            raise UsageError(
                f"replica_strategy={self.replica_strategy!r} is unknown: use 'ddp' or 'fsdp'"
            )
        for name in ("timeout_s", "quorum_timeout_s"):
            value = getattr(self, name)
            expect(name, value, (int, float), "a number of seconds")
            if value <= 0:
                raise UsageError(f"{name}={value!r} must be more than 0")
        for name in ("min_replicas", "sync_every"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}={getattr(self, name)!r} must be at least 1")

        if self.shards and self.of_strategy:
            raise UsageError(OF_FSDP.format(self.of_strategy[0]))

    @property
    def shards(self) -> bool:
        """Whether the ranks of a replica shard the model."""
        return self.replica_strategy == "fsdp"

    def check(self, session: Context) -> None:
        """Raise UsageError for ``sync_buffers`` without effect, or if a model can't be sharded.

        torchbus-sharded is missing, a replica has one rank, or a ``gradient_algorithm`` is given.
        """
        algorithm = session.options.get("gradient_algorithm", "allreduce")
        if "sync_buffers" in self.of_strategy and algorithm == "allreduce":
            raise UsageError(BUFFERS)
        if not self.shards:
            return
        if not any(getattr(one, "divides_states", False) for _, one in session.bus.plugins()):
            raise UsageError(NOT_INSTALLED)
        if session.launcher.ranks_asked_for < 2:
            raise UsageError(ONE_RANK)
        if algorithm != "allreduce":
            raise UsageError(TWO_WAYS.format(algorithm))

    def resolved(self) -> ReplicaOptions:
        """Return the options with defaults from the environment.

        Raises UsageError without a lighthouse, UsageError or LaunchError without a usable secret of
        the user, and OSError if the lighthouse's name has no address.
        """
        url = address(self.lighthouse)
        return ReplicaOptions(
            self.replica or os.environ.get(VARIABLE) or uuid.uuid4().hex[:8],
            self.min_replicas,
            url,
            self.timeout_s,
            self.quorum_timeout_s,
            self.host or local_host(url),
            secret.derived(0, 0, job="ft"),
        )
