"""How ranks exchange values while they write and choose checkpoints.

They use the store instead of a collective, so that a thread may do it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torchbus.plugin import Context, TorchbusError

from torchbus_checkpoint.agreement import wire
from torchbus_checkpoint.errors import CheckpointError

Value = TypeVar("Value")


class Exchange:
    """The exchange about one checkpoint. No other exchange has used its ``key``.

    All ranks call the same methods in the same order.
    """

    def __init__(self, session: Context, key: str) -> None:
        self._session = session
        self._key = key
        self._num_calls = 0
        self.rank, self.world_size, self.is_main = session.rank, session.world_size, session.is_main

    def meet(self) -> None:
        """Wait until rank 0 is here."""
        self._num_calls += 1
        if self.is_main:
            self._set("", 0, b"")
        else:
            self._wait("", 0)

    def gather(self, mine: Value) -> list[Value]:
        """Return the value of each rank on rank 0, and an empty list on the others."""
        self._num_calls += 1
        if not self.is_main:
            self._set("from", self.rank, wire.written(mine))
            return []
        others: list[Value] = [
            wire.read(self._take("from", rank, rank)) for rank in range(1, self.world_size)
        ]
        return [mine, *others]

    def scatter(self, theirs: list[Value]) -> Value:
        """Give each rank its own value from the list that rank 0 passes."""
        self._num_calls += 1
        for rank in range(1, len(theirs)):
            self._set("for", rank, wire.written(theirs[rank]))
        if self.is_main:
            return theirs[0]
        own: Value = wire.read(self._take("for", self.rank, 0))
        return own

    def _name(self, word: str, rank: int) -> str:
        return f"{self._key}/{self._num_calls}{word}{rank}"

    def _set(self, word: str, rank: int, data: bytes) -> None:
        if self.world_size > 1:
            self._session.world.shared.set(self._name(word, rank), data)

    def _take(self, word: str, rank: int, sender: int) -> bytes:
        self._wait(word, rank, sender)
        store, name = self._session.world.shared, self._name(word, rank)
        data = store.get(name)
        store.delete_key(name)
        return bytes(data)

    def _wait(self, word: str, rank: int, sender: int = 0) -> None:
        name = self._name(word, rank)
        if not wait_for(self._session, name):
            raise CheckpointError(
                f"rank {sender} did not write its part of a checkpoint within"
                f" {self._session.timeout.total_seconds():g} s ({name})"
            )


def wait_for(session: Context, key: str) -> bool:
    """Wait until a rank has set this key. Return False if the session's timeout came first."""
    assert session.job is not None
    return session.job.wait_until(
        lambda store: bool(store.check([key])), session.timeout.total_seconds()
    )


def agree(session: Context, key: str, choose: Callable[[], str]) -> str:
    """Return what rank 0 chooses, on every rank, without a collective."""
    if session.world_size == 1:
        return choose()
    store = session.world.shared
    if session.is_main:
        try:
            text = "+" + choose()
        except TorchbusError as error:
            store.set(key, "-" + str(error))
            raise
        store.set(key, text)
        return text[1:]
    if not wait_for(session, key):
        raise CheckpointError("rank 0 did not say which checkpoint to resume from")
    text = store.get(key).decode()
    if text[0] == "-":
        raise CheckpointError(text[1:])
    return text[1:]
