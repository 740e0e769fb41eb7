"""The key-value store that all ranks share, as far as ranks of this job have written it."""

from __future__ import annotations

import hmac
import os
import time
from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist

TAG_BYTES = 16
FORGED_AGAIN_S = 0.05


class SealedStore:
    """torch's store has no password: whoever reaches its port reads and writes it. So each value stands behind a tag, the HMAC of its name and
    itself under the job's key, and one without a right tag counts as not there. Nothing is hidden by that: values can be read.

    ``raw`` is torch's own store, for process groups. All methods raise RuntimeError where the store has gone.
    """

    def __init__(self, raw: dist.Store, key: bytes, prefix: str = "") -> None:
        self._held = [raw]
        self.key = key
        self._prefix = prefix

    @property
    def raw(self) -> dist.Store:
        if not self._held:
            raise RuntimeError("the session has ended, and its store with it")
        return self._held[0]

    def close(self) -> None:
        """Let go of torch's store, for all parts of this one as well: whoever keeps one keeps no port open, and a process that is forked later
        has no server of which it lacks the thread."""
        self._held.clear()

    @property
    def port(self) -> int:
        """At which it is served."""
        assert isinstance(self.raw, dist.TCPStore)
        return int(self.raw.port)

    def within(self, word: str) -> SealedStore:
        """The part of it whose names begin with a word."""
        part = SealedStore(self.raw, self.key, f"{self._prefix}{word}/")
        part._held = self._held
        return part

    def of_groups(self, word: str) -> dist.Store:
        """torch's own store, for what process groups tell each other."""
        return dist.PrefixStore(f"{self._prefix}{word}", self.raw)

    def connection(self, timeout: timedelta) -> SealedStore:
        """The same store by a connection of its own: a word that waits on one keeps the others of that connection waiting."""
        raw = self.raw
        if isinstance(raw, dist.TCPStore):
            raw = dist.TCPStore(raw.host, raw.port, is_master=False, timeout=timeout, wait_for_workers=False)
        return SealedStore(raw, self.key, self._prefix)

    def set(self, name: str, value: str | bytes) -> None:
        self.raw.set(self._prefix + name, self._sealed(name, value))  # type: ignore[arg-type]

    def read(self, name: str) -> bytes | None:
        """The value, None where there is none; does not wait."""
        return self._opened(name, self._there(name))

    def get(self, name: str) -> bytes:
        """The value, once it is there. Raises RuntimeError when it has not come within the store's timeout."""
        deadline = time.monotonic() + self.raw.timeout.total_seconds()  # type: ignore[attr-defined]
        while (value := self._opened(name, self.raw.get(self._prefix + name))) is None:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the store's {self._prefix + name} is not by a rank of this job")
            time.sleep(FORGED_AGAIN_S)
        return value

    def wait(self, name: str) -> None:
        """Until something is there, by whomever. Raises RuntimeError after the store's timeout."""
        self.raw.get(self._prefix + name)

    def multi_get(self, names: Sequence[str]) -> list[bytes]:
        return [self.get(name) for name in names]

    def check(self, names: Sequence[str]) -> bool:
        """Whether all are there."""
        return self.raw.check([self._prefix + name for name in names]) and all(self.read(name) is not None for name in names)

    def compare_set(self, name: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set it if it is as expected ("": not there). Returns what is there now."""
        while True:
            there = self._there(name)
            value = self._opened(name, there) or b""
            if value != _bytes(expected):
                return value
            if self._swap(name, there, _bytes(desired)):
                return _bytes(desired)

    def leave(self, name: str, value: str | bytes) -> None:
        """Set it if nothing is there, by whomever."""
        self.raw.compare_set(self._prefix + name, "", self._sealed(name, value))  # type: ignore[arg-type]

    def add(self, name: str, amount: int) -> int:
        """Count on; returns the sum. Ranks that count at once try again: what many do, each does with a name of its own."""
        while True:
            there = self._there(name)
            total = int((self._opened(name, there) or b"0").split()[0]) + amount
            if not amount or self._swap(name, there, f"{total} {os.urandom(8).hex()}".encode()):  # like no other rank's
                return total

    def delete_key(self, name: str) -> bool:
        return bool(self.raw.delete_key(self._prefix + name))

    def _swap(self, name: str, there: bytes, value: bytes) -> bool:
        mine = self._sealed(name, value)
        return bool(self.raw.compare_set(self._prefix + name, there, mine) == mine)  # type: ignore[arg-type]

    def _there(self, name: str) -> bytes:
        key = self._prefix + name
        return self.raw.get(key) if self.raw.check([key]) else b""

    def _sealed(self, name: str, value: str | bytes) -> bytes:
        data = _bytes(value)
        return tag(self.key, (self._prefix + name).encode() + b"\0" + data) + data

    def _opened(self, name: str, sealed: bytes) -> bytes | None:
        data = sealed[TAG_BYTES:]
        right = tag(self.key, (self._prefix + name).encode() + b"\0" + data)
        return data if hmac.compare_digest(sealed[:TAG_BYTES], right) else None


def tag(key: bytes, message: bytes) -> bytes:
    """What only those can make who have the key."""
    return hmac.digest(key, message, "sha256")[:TAG_BYTES]


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value
