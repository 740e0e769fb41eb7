"""Binds the ranks' store to one interface; torch would bind it to every interface of the host."""

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

from torchbus_launch.store import LIBUV_TAKES_SOCKETS
from torchbus_launch.variables import INTERFACE

LOOPBACK = "127.0.0.1"
SERVED = "session {} is served"
LOOK_AGAIN_S = 0.05
sessions = itertools.count()
"""Numbers this process's sessions with ranks that it did not start; all ranks agree on them."""


def serve(
    address: str, port: int, one_host: bool, timeout: timedelta, session: int | None = None
) -> dist.TCPStore:
    """Serve a store for ranks that connect to ``address``; ``port`` 0 is any free port.

    A launcher's ranks find the store with ``reach``, by the number of the session. Raises torch's
    error if the port is in use.
    """
    listener = _listener(LOOPBACK if one_host else _local_address(address), port)
    descriptor = None if listener is None else listener.detach()
    number = port if descriptor is None else _port(descriptor)
    store = dist.TCPStore(
        address,
        number,
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        multi_tenant=session is not None,
        master_listen_fd=descriptor,
        use_libuv=descriptor is None or LIBUV_TAKES_SOCKETS,
    )
    if session is not None:
        store.set(SERVED.format(session), "")
    return store


def reach(address: str, port: int, timeout: timedelta, session: int) -> dist.TCPStore:
    """Connect to the store of this session.

    An earlier session's store may still be closing on the same port, so this function retries.
    Raises RuntimeError if the store does not appear within ``timeout``.
    """
    deadline = time.monotonic() + timeout.total_seconds()
    while not _serves(store := _connected(address, port, timeout), session):
        del store  # torch warns if the store ends while a request is pending
        if time.monotonic() > deadline:
            raise RuntimeError(f"what listens there does not serve session {session} of this job")
        time.sleep(LOOK_AGAIN_S)
    return store


def _connected(address: str, port: int, timeout: timedelta) -> dist.TCPStore:
    return dist.TCPStore(address, port, is_master=False, timeout=timeout, wait_for_workers=False)


def _serves(store: dist.TCPStore, session: int) -> bool:
    try:
        return store.check([SERVED.format(session)])
    except RuntimeError:  # the store is closed
        return False


@contextlib.contextmanager
def gloo_on_loopback(one_host: bool) -> Iterator[None]:
    """Let gloo process groups made inside the block listen on the loopback interface.

    This applies only to one host, and only if the user has not named an interface.
    """
    name = (
        next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
        if one_host
        else None
    )
    if name is None or INTERFACE in os.environ:
        yield
        return
    os.environ[INTERFACE] = name  # torch's C++ code reads only this variable
    try:
        yield
    finally:
        del os.environ[INTERFACE]


def _local_address(address: str) -> str | None:
    """Return the numeric address of this host that the others use; None if it is unknown here."""
    if address == "localhost":
        return LOOPBACK
    try:
        found = {
            str(one[4][0]) for one in socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)
        }
    except OSError:
        return None
    number = found.pop()
    # Debian's /etc/hosts has 127.0.1.1
    is_elsewhere = number != address and ipaddress.ip_address(number.split("%")[0]).is_loopback
    return None if found or is_elsewhere else number


def _listener(number: str | None, port: int) -> socket.socket | None:
    """Return a bound socket, or None to let torch bind one.

    None is returned if the address is unknown or not this host's, or if the port is in use. In the
    latter case, torch raises an error, or shares the store that this process already serves there.
    """
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
