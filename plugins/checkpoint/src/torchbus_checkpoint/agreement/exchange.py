"""What ranks tell each other while they write and choose checkpoints: over the store, without a collective, so that a thread may do it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchbus.plugin import Context, TorchbusError

from torchbus_checkpoint.agreement import wire
from torchbus_checkpoint.errors import CheckpointError


class Exchange:
    """Of one checkpoint, whose ``key`` is new. All ranks say the same words in the same order."""

    def __init__(self, session: Context, key: str) -> None:
        self._session = session
        self._key = key
        self._said = 0
        self.rank, self.world_size, self.is_main = session.rank, session.world_size, session.is_main

    def meet(self) -> None:
        """Rank 0 is here."""
        self._said += 1
        if self.is_main:
            self._set("", 0, b"")
        else:
            self._wait("", 0)

    def gather(self, mine: Any) -> list[Any]:
        """What each rank has, on rank 0; nothing on the others."""
        self._said += 1
        if not self.is_main:
            self._set("from", self.rank, wire.written(mine))
            return []
        return [mine, *(self._take("from", rank, rank) for rank in range(1, self.world_size))]

    def scatter(self, theirs: list[Any]) -> Any:
        """To each rank its own of what rank 0 has."""
        self._said += 1
        for rank in range(1, len(theirs)):
            self._set("for", rank, wire.written(theirs[rank]))
        return theirs[0] if self.is_main else self._take("for", self.rank, 0)

    def _name(self, word: str, rank: int) -> str:
        return f"{self._key}/{self._said}{word}{rank}"

    def _set(self, word: str, rank: int, data: bytes) -> None:
        if self.world_size > 1:
            self._session.world.shared.set(self._name(word, rank), data)

    def _take(self, word: str, rank: int, teller: int) -> Any:
        self._wait(word, rank, teller)
        store, name = self._session.world.shared, self._name(word, rank)
        data = store.get(name)
        store.delete_key(name)
        return wire.read(data)

    def _wait(self, word: str, rank: int, teller: int = 0) -> None:
        job, name, seconds = self._session.job, self._name(word, rank), self._session.timeout.total_seconds()
        assert job is not None
        if not job.wait_until(lambda store: bool(store.check([name])), seconds):
            raise CheckpointError(f"rank {teller} did not write its part of a checkpoint within {seconds:g} s ({name})")


def agree(session: Context, key: str, choose: Callable[[], str]) -> str:
    """What rank 0 has chosen, on every rank, without a collective."""
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
    assert session.job is not None
    if not session.job.wait_until(lambda store: bool(store.check([key])), session.timeout.total_seconds()):
        raise CheckpointError("rank 0 did not say which checkpoint to resume from")
    text = store.get(key).decode()
    if text[0] == "-":
        raise CheckpointError(text[1:])
    return text[1:]
