"""An array that the ranks of a node share.

It is a file in memory without a name. The kernel frees it when the last rank releases it, or is
killed. Each rank that wants the array offers a file of its own, and the store takes the first. Its
rank draws while it holds a lock on the file. The others open the file through /proc, wait for the
lock, and map the file for reading.
"""

from __future__ import annotations

import mmap
import os
import time
import weakref

import torch
from torch import Generator
from torchbus.plugin import SharedStore

from torchbus_sampler.orders.array import ITEM_BYTES, OrderArray, words, write
from torchbus_sampler.orders.draws import Draws

TOKEN_BYTES, NUMBER_BYTES = 16, 8
HEADER_BYTES = 2**14  # token, length of the generator's state, this state
LOCK_ASKED_EVERY_S = 0.01


class NotShared(Exception):
    """Another rank's array is not available: the rank has failed or released it."""


class NoRoom(Exception):
    """There is too little shared memory. The message gives the reason."""


def shared(store: SharedStore, name: str, length: int, draws: Draws) -> SharedArray:
    """Return the array of that name, which the first rank that asks for it draws.

    Raises NotShared or NoRoom before anything is drawn.
    """
    file = _File(HEADER_BYTES + words(length) * ITEM_BYTES)
    try:
        winner = store.compare_set(name, "", file.address).decode()
    except RuntimeError as error:
        raise NotShared("the store has gone") from error
    return (
        _drawn(file, length, draws)
        if winner == file.address
        else _opened(winner, file.size, length, draws)
    )


class _File:
    """A file in memory, locked until ``unlock``. It is closed with this object."""

    def __init__(self, size: int) -> None:
        self.size = size
        try:
            self.fd = os.memfd_create("torchbus-order")
            weakref.finalize(self, os.close, self.fd)
            os.ftruncate(self.fd, size)
        except (OSError, AttributeError) as error:
            raise NoRoom(
                getattr(error, "strerror", None) or "this system has no memfd_create"
            ) from error
        import fcntl  # not on every system

        fcntl.flock(self.fd, fcntl.LOCK_EX)
        self.token = os.urandom(TOKEN_BYTES)
        self.address = f"{os.getpid()} {self.fd} {self.token.hex()}"

    def unlock(self) -> None:
        import fcntl

        fcntl.flock(self.fd, fcntl.LOCK_UN)


class SharedArray(OrderArray):
    """``file``: the rank that has drawn it keeps it open for later ranks. None on the others."""

    def __init__(self, fd: int, length: int, file: _File | None) -> None:
        super().__init__(
            memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_READ))[HEADER_BYTES:].cast("q"), length
        )
        self.file = file


def _drawn(file: _File, length: int, draws: Draws) -> SharedArray:
    try:
        os.posix_fallocate(file.fd, 0, file.size)
    except OSError as error:
        raise NoRoom(error.strerror) from error
    view = memoryview(mmap.mmap(file.fd, file.size))
    write(view[HEADER_BYTES:].cast("q"), length, draws.fill)
    state = bytes(draws.generator.get_state().tolist())
    header = file.token + len(state).to_bytes(NUMBER_BYTES, "little") + state
    view[: len(header)] = header
    file.unlock()
    return SharedArray(file.fd, length, file)


def _opened(address: str, size: int, length: int, draws: Draws) -> SharedArray:
    process, number, token = address.split()
    try:
        fd = os.open(f"/proc/{process}/fd/{number}", os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise NotShared(error.strerror) from error
    try:
        if os.fstat(fd).st_size != size:
            raise NotShared("it is another file")
        _wait(fd)
        _go_on(draws.generator, _state(fd, bytes.fromhex(token)))
        return SharedArray(fd, length, None)
    finally:
        os.close(fd)


def _wait(fd: int) -> None:
    """Wait until the rank that draws has finished, or has ended."""
    import fcntl

    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOCK_ASKED_EVERY_S)


def _state(fd: int, token: bytes) -> bytes:
    """Return the generator's state after the draws. Raises NotShared if there is none."""
    header = os.pread(fd, HEADER_BYTES, 0)
    if header[:TOKEN_BYTES] != token:
        raise NotShared("it was not drawn")
    start = TOKEN_BYTES + NUMBER_BYTES
    return header[start : start + int.from_bytes(header[TOKEN_BYTES:start], "little")]


def _go_on(generator: Generator, state: bytes) -> None:
    generator.set_state(torch.tensor(list(state), dtype=torch.uint8))
