"""Where the ranks' store listens: torch's own choice is every interface of the host."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import itertools
import os
import socket
import time
from collections.abc import Iterator
from datetime import timedelta

import torch.distributed as dist

LOOPBACK = "127.0.0.1"
INTERFACE = "GLOO_SOCKET_IFNAME"
SERVED = "session {} is served"
LOOK_AGAIN_S = 0.05
sessions = itertools.count()
"""Of this process, among ranks that somebody else started: all of them count alike."""


def serve(address: str, port: int, one_host: bool, timeout: timedelta, session: int | None = None) -> dist.TCPStore:
    """A store for ranks that reach it at ``address``; ``port`` 0 is any free one. Ranks that somebody else started ``reach`` it by the number of
    the session.

    Raises what torch does where the port is in use.
    """
    listener = _listener(LOOPBACK if one_host else _own(address), port)
    descriptor = None if listener is None else listener.detach()
    number = port if descriptor is None else _port(descriptor)
    store = dist.TCPStore(address, number, is_master=True, timeout=timeout, wait_for_workers=False, multi_tenant=session is not None,
                          master_listen_fd=descriptor)  # fmt: skip
    if session is not None:
        store.set(SERVED.format(session), "")
    return store


def reach(address: str, port: int, timeout: timedelta, session: int) -> dist.TCPStore:
    """The store of this session. One of an earlier session of the same ranks, on the same port, may only be about to end.

    Raises RuntimeError where it does not come within ``timeout``.
    """
    deadline = time.monotonic() + timeout.total_seconds()
    while not _serves(store := _connected(address, port, timeout), session):
        del store  # a question that stands open where it ends makes torch print a warning
        if time.monotonic() > deadline:
            raise RuntimeError(f"what listens there does not serve session {session} of this job")
        time.sleep(LOOK_AGAIN_S)
    return store


def _connected(address: str, port: int, timeout: timedelta) -> dist.TCPStore:
    return dist.TCPStore(address, port, is_master=False, timeout=timeout, wait_for_workers=False)


def _serves(store: dist.TCPStore, session: int) -> bool:
    try:
        return store.check([SERVED.format(session)])
    except RuntimeError:  # it has ended
        return False


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
