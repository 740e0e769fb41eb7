"""Finds this process's connections, and ends them."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Any


def sockets_opened() -> set[int]:
    """Return the descriptors of this process's sockets; an empty set outside Linux."""
    return set(_connected_sockets())


def _connected_sockets() -> Iterator[int]:
    with contextlib.suppress(FileNotFoundError):
        for entry in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{entry}").startswith("socket:"):
                    yield int(entry)


def connected_to(port: int) -> set[int]:
    """Return the descriptors of this process's sockets that are connected to a port."""
    return {descriptor for descriptor in sockets_opened() if _port_of_peer(descriptor) == port}


def _port_of_peer(descriptor: int) -> int | None:
    """Return the port at the other end of a TCP connection; None for any other socket.

    The host process may have sockets of other families: the peer of a Unix socket is a path.
    """
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as copy:
        if copy.family in (socket.AF_INET, socket.AF_INET6):
            return int(copy.getpeername()[1])
    return None


def shut(descriptors: set[int]) -> None:
    """End the connections of these sockets; leave listening sockets open."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            copy: Any = socket.socket(fileno=os.dup(descriptor))
            with copy:
                if not copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    copy.shutdown(socket.SHUT_RDWR)
