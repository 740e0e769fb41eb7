"""An array that the ranks of a node share.

The array is in a memory file without a name, which the kernel frees when the last rank releases it
or is killed. Each rank that needs the array offers a file, and the store accepts the first one. The
rank of that file draws while it holds a lock on the file. The others open the file through /proc,
wait for the lock, and map the file for reading."""

from __future__ import annotations

import array
import contextlib
import mmap
import os
import time
import weakref
import zlib
from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import torch
from torch import Generator, Tensor
from torchbus.plugin import SharedStore, World, warn

from torchbus_sampler.orders.draws import Draws

SHARED_FROM = 2**20  # samples; drawing a smaller array is faster than asking the store
TOO_SMALL = (
    "the order of {} samples does not fit into shared memory ({}): each rank keeps its own copy,"
    " {:.1f} GB"
)


class SharedArrays:
    """Makes arrays that the ranks of a node share through ``store`` (None if there is one rank).

    The first rank that asks draws the array. Ranks that ask meanwhile wait for it, and draw a copy
    themselves if that rank ends without having drawn.
    """

    def __init__(self, store: SharedStore | None = None, shared_from: int = SHARED_FROM) -> None:
        self._store = store
        self._shared_from = shared_from
        self._drawn: Counter[str] = Counter()
        self._offered: list[tuple[str, weakref.ref[OrderArray]]] = []

    def array(self, length: int, draws: Draws) -> OrderArray:
        """Return the next ``length`` indices.

        Afterwards the generator is in the state after these draws, even if another rank drew them.
        """
        if self._store is not None and draws.shared and length >= self._shared_from:
            try:
                return self._shared(self._store, length, draws)
            except NoSharedMemory as error:
                warn(TOO_SMALL.format(length, error, length * 8 / 1e9))
            except NotShared:
                pass
        return local_array(length, draws.fill)

    def _shared(self, store: SharedStore, length: int, draws: Draws) -> OrderArray:
        self._forget(store)
        name = self._name(length, draws)
        found = shared(store, name, length, draws)
        if found.file is not None:
            self._offered.append((name, weakref.ref(found)))
        return found

    def _forget(self, store: SharedStore) -> None:
        """Remove from the store the arrays that this rank has drawn and released."""
        over = [name for name, array in self._offered if array() is None]
        self._offered = [(name, array) for name, array in self._offered if name not in over]
        with contextlib.suppress(RuntimeError):  # the store has gone
            for name in over:
                store.delete_key(name)

    def _name(self, length: int, draws: Draws) -> str:
        """Return a name that is equal on ranks that would draw the same for the same n-th time."""
        state = bytes(draws.generator.get_state().tolist())
        what = blake2b(state + f"{length} {draws.name}".encode(), digest_size=16).hexdigest()
        self._drawn[what] += 1
        return f"{what}/{self._drawn[what]}"


def memory_of(world: World) -> SharedArrays:
    """Return the memory for the ranks of this node."""
    if world.store is None or world.local_world_size < 2:
        return SharedArrays()
    return SharedArrays(world.store.within(f"orders/{world.node_rank}"))


TOKEN_BYTES, NUMBER_BYTES = 16, 8
HEADER_BYTES = 2**14  # for the token, the length of the generator's state, and the state
LOCK_ASKED_EVERY_S = 0.01


class NotShared(Exception):
    """Another rank's array is not available: the rank has failed or released it."""


class NoSharedMemory(Exception):
    """There is too little shared memory. The message gives the reason."""


def shared(store: SharedStore, name: str, length: int, draws: Draws) -> SharedArray:
    """Return the array of that name, which the first rank that asks for it draws.

    Raises NotShared or NoSharedMemory before anything is drawn.
    """
    file = _File(HEADER_BYTES + array_length(length) * ITEM_BYTES)
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
    """A file in memory, locked until ``unlock``. It is closed when this object is freed."""

    def __init__(self, size: int) -> None:
        self.size = size
        try:
            self.fd = os.memfd_create("torchbus-order")
            weakref.finalize(self, os.close, self.fd)
            os.ftruncate(self.fd, size)
        except (OSError, AttributeError) as error:
            raise NoSharedMemory(
                getattr(error, "strerror", None) or "this system has no memfd_create"
            ) from error
        import fcntl  # not on every system

        fcntl.flock(self.fd, fcntl.LOCK_EX)
        self.token = os.urandom(TOKEN_BYTES)
        self.address = f"{os.getpid()} {self.fd} {self.token.hex()}"

    def unlock(self) -> None:
        import fcntl

        fcntl.flock(self.fd, fcntl.LOCK_UN)


class OrderArray:
    """``length`` indices, each an int64, and after them the checksums of the blocks.

    They are in one buffer of ``array_length(length)`` numbers. A block's checksum covers all
    indices up to its end.
    """

    def __init__(self, view: memoryview, length: int) -> None:
        self._view = view
        self.length = length

    def indices(self, start: int, stop: int) -> list[int]:
        return self._view[start:stop].tolist()

    def checksum(self, stop: int) -> int:
        """Return the checksum of all blocks up to the one with index number ``stop - 1``."""
        return int(self._view[self.length + (stop - 1) // BLOCK])


class SharedArray(OrderArray):
    """An array in shared memory. ``file`` is open on the rank that drew it, and None on others."""

    def __init__(self, fd: int, length: int, file: _File | None) -> None:
        super().__init__(
            memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_READ))[HEADER_BYTES:].cast("q"), length
        )
        self.file = file


def _drawn(file: _File, length: int, draws: Draws) -> SharedArray:
    try:
        os.posix_fallocate(file.fd, 0, file.size)
    except OSError as error:
        raise NoSharedMemory(error.strerror) from error
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


BLOCK = 2**16  # samples
ITEM_BYTES = 8
Fill = Callable[[Tensor], None]


def array_length(length: int) -> int:
    """Return how many numbers an array of ``length`` indices has."""
    return length + -(-length // BLOCK)


def local_array(length: int, fill: Fill) -> OrderArray:
    """Draw an array in this process's memory, which is not shared."""
    view = memoryview(array.array("q", [0]) * array_length(length))
    write(view, length, fill)
    return OrderArray(view, length)


def write(view: memoryview, length: int, fill: Fill) -> None:
    """Draw the indices into ``view``, and compute the checksums."""
    if not length:
        return
    fill(torch.frombuffer(view, dtype=torch.int64, count=length))
    checksum = 0
    for number, start in enumerate(range(0, length, BLOCK)):
        checksum = zlib.crc32(view[start : min(start + BLOCK, length)], checksum)
        view[length + number] = checksum


def checksum_of(indices: Any, before: int = 0) -> int:
    """Return the checksum of a list, tuple, range, tensor or array of numbers, read in blocks."""
    if isinstance(indices, range):
        return zlib.crc32(repr(indices).encode(), before)
    for start in range(0, len(indices), BLOCK):
        part = indices[start : start + BLOCK]
        before = digest(part.tolist() if hasattr(part, "tolist") else list(part), before)
    return before


def digest(indices: list[Any], before: int) -> int:
    """Return a number that is equal on all ranks with the same indices so far."""
    try:
        return zlib.crc32(array.array("q", indices).tobytes(), before)
    except (TypeError, OverflowError):
        return zlib.crc32(repr(indices).encode(), before)
