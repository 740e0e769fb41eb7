"""Where the lighthouse is, and by what address the other replicas reach this machine."""

from __future__ import annotations

import os
import socket
from urllib.parse import urlsplit

from torchbus.plugin import LaunchError, UsageError, expect

VARIABLE = "TORCHFT_LIGHTHOUSE"
NONE = (
    "strategy='ft' needs a lighthouse, by which replicas find each other: start one with"
    " `torchft_lighthouse --min_replicas 1`, and name it by FT(lighthouse='http://HOST:29510') or"
    f" by {VARIABLE}"
)
SILENT = (
    "the lighthouse at {} does not answer: {}. Start it with `torchft_lighthouse --min_replicas 1`,"
    " and check its address and the firewall. Nothing was trained yet"
)


def address(given: str | None) -> str:
    """The URL of the lighthouse: the argument, or that of the environment."""
    expect("lighthouse", given, (str, type(None)), "the URL of a lighthouse")
    found = given or os.environ.get(VARIABLE)
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
    """Raise LaunchError if no server listens there."""
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 0), timeout_s).close()
    except OSError as error:
        raise LaunchError(SILENT.format(url, error)) from None


def local_host(url: str) -> str:
    """This machine's address on the way to the lighthouse. Nothing is sent."""
    parts = urlsplit(url)
    family, kind, _, _, place = socket.getaddrinfo(
        parts.hostname, parts.port, type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, kind) as found:
        found.connect(place)
        return str(found.getsockname()[0])
