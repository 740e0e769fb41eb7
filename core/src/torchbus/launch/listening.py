"""Where the ranks' store listens: torch's own choice is every interface of the host."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
from collections.abc import Iterator
from datetime import timedelta

import torch.distributed as dist

LOOPBACK = "127.0.0.1"
INTERFACE = "GLOO_SOCKET_IFNAME"


def serve(address: str, port: int, one_host: bool, timeout: timedelta, world_size: int | None = None) -> dist.TCPStore:
    """A store for ranks that reach it at ``address``; ``port`` 0 is any free one. With ``world_size`` it waits until so many are there.

    Raises what torch does where the port is in use.
    """
    listener = _listener(LOOPBACK if one_host else _own(address), port)
    descriptor = None if listener is None else listener.detach()
    number = port if descriptor is None else _port(descriptor)
    return dist.TCPStore(address, number, world_size, is_master=True, timeout=timeout, wait_for_workers=world_size is not None,
                         multi_tenant=world_size is not None, master_listen_fd=descriptor)  # fmt: skip


@contextlib.contextmanager
def gloo_on_loopback(one_host: bool) -> Iterator[None]:
    """Process groups of gloo that are made meanwhile listen on the loopback interface, unless the user has named one."""
    name = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None) if one_host else None
    if name is None or INTERFACE in os.environ:
        yield
        return
    os.environ[INTERFACE] = name  # torch asks this variable alone, in C++
    try:
        yield
    finally:
        del os.environ[INTERFACE]


def _own(address: str) -> str | None:
    """The numeric address of this host that the others use; None where it can't be told from here."""
    if address == "localhost":
        return LOOPBACK
    try:
        found = {str(one[4][0]) for one in socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)}
    except OSError:
        return None
    number = found.pop()
    is_elsewhere = number != address and ipaddress.ip_address(number.split("%")[0]).is_loopback  # Debian's /etc/hosts has 127.0.1.1
    return None if found or is_elsewhere else number


def _listener(number: str | None, port: int) -> socket.socket | None:
    """A bound socket. None where torch shall try by itself: an address that this host does not have, or a port in use, of which torch makes an
    error or shares a store that this process serves there."""
    if number is None:
        return None
    listener = socket.socket(socket.AF_INET6 if ":" in number else socket.AF_INET)
    try:
        if os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((number, port))
    except OSError as error:
        listener.close()
        if error.errno in (errno.EADDRNOTAVAIL, errno.EADDRINUSE):
            return None
        raise
    return listener


def _port(descriptor: int) -> int:
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        return int(copy.getsockname()[1])
