"""The store that all ranks share: signed values, counters and barriers on top of torch's store."""

from __future__ import annotations

import hashlib
import hmac
import os
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torchbus.world import World

TAG_BYTES = 16
LIBUV_TAKES_SOCKETS = torch.__version__ >= "2.8"
"""Whether stores with libuv accept a socket that is already bound. Older ones raise; those without
libuv accept it.
"""
FORGED_AGAIN_S = 0.05


class SealedStore:
    """A store whose values carry the tag of this job.

    torch's store has no password: anyone who reaches its port can read and write it. So each value
    is stored after a tag, the HMAC of name and value under the job's key. A value without a valid
    tag counts as missing. Values are not encrypted.

    ``raw`` is torch's own store, for process groups. All methods raise RuntimeError if the store
    has gone.
    """

    def __init__(self, raw: dist.Store, key: bytes, prefix: str = "") -> None:
        self._held = [raw]
        self.key = key
        self.prefix = prefix

    @property
    def raw(self) -> dist.Store:
        """torch's own store, for process groups. Raises RuntimeError after the session."""
        if not self._held:
            raise RuntimeError("the session has ended, and its store with it")
        return self._held[0]

    def close(self) -> None:
        """Release torch's store, also for all parts of this store.

        So an object that still holds a part does not hold the port open, and a process that is
        forked later does not inherit a server without its thread.
        """
        self._held.clear()

    @property
    def _bytes(self) -> Any:
        """The store without its annotations, which leave out methods for values of bytes."""
        return self.raw

    @property
    def timeout_s(self) -> float:
        """The number of seconds that ``get`` and ``wait`` wait at most."""
        return float(self._bytes.timeout.total_seconds())

    @property
    def port(self) -> int:
        """The port of the store."""
        assert isinstance(self.raw, dist.TCPStore)
        return int(self.raw.port)

    def within(self, word: str) -> SealedStore:
        """Return a view of the store in which all names get a prefix."""
        part = SealedStore(self.raw, self.key, f"{self.prefix}{word}/")
        part._held = self._held
        return part

    def of_groups(self, word: str) -> dist.Store:
        """Return torch's own store for the messages of process groups."""
        return dist.PrefixStore(f"{self.prefix}{word}", self.raw)

    def connection(self, timeout: timedelta) -> SealedStore:
        """Return the same store over a new connection.

        A request that waits on a connection blocks all others of that connection.
        """
        raw = self.raw
        if isinstance(raw, dist.TCPStore):
            raw = dist.TCPStore(
                raw.host, raw.port, is_master=False, timeout=timeout, wait_for_workers=False
            )
        return SealedStore(raw, self.key, self.prefix)

    def set(self, name: str, value: str | bytes) -> None:
        """Set the value, with its tag."""
        self._bytes.set(self.prefix + name, self._sealed(name, value))

    def set_all(self, values: Mapping[str, str | bytes]) -> None:
        """Set the values in one request."""
        keys = [self.prefix + name for name in values]
        self._bytes.multi_set(keys, [self._sealed(name, one) for name, one in values.items()])

    def read(self, name: str) -> bytes | None:
        """Return the value, or None if there is none; do not wait."""
        return self._opened(name, self._there(name))

    def get(self, name: str) -> bytes:
        """Wait for the value, and return it.

        Raises RuntimeError if it does not come within the store's timeout.
        """
        deadline = time.monotonic() + self.timeout_s
        while (value := self._opened(name, self.raw.get(self.prefix + name))) is None:
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"the store's {self.prefix + name} was not written by a rank of this job:"
                    " another program has written it. Let only the job's hosts reach MASTER_PORT"
                )
            time.sleep(FORGED_AGAIN_S)
        return value

    def wait(self, name: str) -> None:
        """Wait for any value, also an unsigned one; RuntimeError after the store's timeout."""
        self.raw.get(self.prefix + name)

    def multi_get(self, names: Sequence[str]) -> list[bytes]:
        """Wait for the values, and return them: in one request if this job has written them all."""
        found = map(self._opened, names, self._all_there(names))
        return [
            self.get(name) if value is None else value
            for name, value in zip(names, found, strict=True)
        ]

    def check(self, names: Sequence[str]) -> bool:
        """Return whether all of these values exist, in one request, or two if they do."""
        return self.read_all(names) is not None

    def read_all(self, names: Sequence[str]) -> list[bytes] | None:
        """Return the values, or None if one is missing, in one request or two; do not wait."""
        if not self.raw.check([self.prefix + name for name in names]):
            return None
        found = [self._opened(*one) for one in zip(names, self._all_there(names), strict=True)]
        values = [value for value in found if value is not None]
        return values if len(values) == len(found) else None

    def unsigned(self, name: str) -> bytes:
        """Return a value that carries an invalid tag; b"" if there is none."""
        return self._there(name)[TAG_BYTES:]

    def compare_set(self, name: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set the value if it equals ``expected`` ("" if missing); return the value it has now."""
        while True:
            there = self._there(name)
            value = self._opened(name, there) or b""
            if value != _bytes(expected):
                return value
            if self._swap(name, there, _bytes(desired)):
                return _bytes(desired)

    def leave(self, name: str, value: str | bytes) -> None:
        """Set the value if the store has none, not even an unsigned one."""
        self._swap(name, b"", _bytes(value))

    def add(self, name: str, amount: int) -> int:
        """Add to a counter, and return the sum.

        Ranks that add at the same time retry. If many ranks add, use a separate name for each.
        """
        while True:
            there = self._there(name)
            total = int((self._opened(name, there) or b"0").split()[0]) + amount
            # random bytes make the value unique among the ranks
            if not amount or self._swap(name, there, f"{total} {os.urandom(8).hex()}".encode()):
                return total

    def count(self, name: str, amount: int) -> int:
        """Add to a counter, and return the sum, in one request for any number of ranks.

        The counter carries no tag. Only its name is secret, so a stranger can change it if the
        store lists names. Don't use it for a decision that only this job may make.
        """
        return int(self.raw.add(self.prefix + self.secret(f"the counter {name}").hex(), amount))

    def secret(self, name: str) -> bytes:
        """Return bytes that only ranks of this job can compute."""
        return hmac.digest(self.key, f"{self.prefix}{name}".encode() + b"\0secret", "sha256")

    def delete_key(self, name: str) -> bool:
        """Remove the value; return whether there was one."""
        return bool(self.raw.delete_key(self.prefix + name))

    def _swap(self, name: str, there: bytes, value: bytes) -> bool:
        mine, key = self._sealed(name, value), self.prefix + name
        done = bool(self._bytes.compare_set(key, there, mine) == mine)
        if done and not LIBUV_TAKES_SOCKETS:
            self._bytes.append(key, "")  # a store without libuv wakes no waiting client
        return done

    def _all_there(self, names: Sequence[str]) -> list[bytes]:
        keys = [self.prefix + name for name in names]
        return self.raw.multi_get(keys) if keys else []

    def _there(self, name: str) -> bytes:
        key = self.prefix + name
        return self.raw.get(key) if self.raw.check([key]) else b""

    def _sealed(self, name: str, value: str | bytes) -> bytes:
        data = _bytes(value)
        return tag(self.key, (self.prefix + name).encode() + b"\0" + data) + data

    def _opened(self, name: str, sealed: bytes) -> bytes | None:
        data = sealed[TAG_BYTES:]
        right = tag(self.key, (self.prefix + name).encode() + b"\0" + data)
        return data if hmac.compare_digest(sealed[:TAG_BYTES], right) else None


def shared_store(world: World) -> SealedStore:
    """Return the store of a world of several ranks, as the class that launching needs."""
    return cast(SealedStore, world.shared)


def tag(key: bytes, message: bytes) -> bytes:
    """Return the tag of a message, which only holders of the key can make."""
    return hmac.digest(key, message, "sha256")[:TAG_BYTES]


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


NUMBER_BYTES = 5  # the sum of 2**23 such numbers fits into the 64 bits of the store's counters


class StoreBarrier:
    """Barrier by one counter, to which each rank adds its number; the last one releases the others.

    The numbers are derived from the job's key, so only ranks of the job can complete the sum. Each
    rank calls ``say`` once.
    """

    def __init__(self, store: SealedStore, word: str, rank: int, world_size: int) -> None:
        self._store = store
        self._word = word
        self._rank = rank
        self._world_size = world_size

    def say(self) -> bool:
        """Announce this rank, and return whether it was the last."""
        numbers = self._numbers()
        is_last = self._store.count(self._word, numbers[self._rank]) == sum(numbers)
        if is_last:
            self._store.set(f"all {self._word}", "")
        return is_last

    def is_complete(self) -> bool:
        """Return whether all ranks have announced themselves."""
        return self._store.check([f"all {self._word}"])

    def _numbers(self) -> list[int]:
        secret = self._store.secret(f"the numbers of {self._word}")
        drawn = hashlib.shake_256(secret).digest(NUMBER_BYTES * self._world_size)
        return [
            int.from_bytes(drawn[start : start + NUMBER_BYTES], "big")
            for start in range(0, len(drawn), NUMBER_BYTES)
        ]


REQUESTS_PER_S = 5000
"""How many requests the store may get for polling: about a tenth of what it can answer in all."""


def pause_s(shortest_s: float, world_size: int) -> float:
    """Return the seconds that each rank must pause between two requests."""
    return max(shortest_s, world_size / REQUESTS_PER_S)
