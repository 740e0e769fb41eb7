"""How ranks exchange values while they write and choose checkpoints.

They use the store instead of a collective, so that a thread may do it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
        self._told: list[str] = []
        self.rank, self.world_size, self.is_main = session.rank, session.world_size, session.is_main

    def meet(self) -> None:
        """Wait until rank 0 is here, which has read by now what it has gathered."""
        self._num_calls += 1
        if self.is_main:
            self._set("", 0, b"")
        else:
            self._wait([self._name("", 0)], [0])
            self._forget_told()

    def gather(self, mine: Value) -> list[Value]:
        """Return the value of each rank on rank 0, and an empty list on the others.

        Rank 0 asks for all at once.
        """
        self._num_calls += 1
        if not self.is_main:
            self._set("from", self.rank, wire.written(mine))
            self._told.append(self._name("from", self.rank))
            return []
        ranks = range(1, self.world_size)
        names = [self._name("from", rank) for rank in ranks]
        if not names:
            return [mine]
        self._wait(names, ranks)
        others: list[Value] = list(map(wire.read, self._session.world.shared.multi_get(names)))
        return [mine, *others]

    def scatter(self, theirs: list[Value]) -> Value:
        """Give each rank its own value from the list that rank 0 passes."""
        self._num_calls += 1
        for rank in range(1, len(theirs)):
            self._set("for", rank, wire.written(theirs[rank]))
        if self.is_main:
            return theirs[0]
        name, store = self._name("for", self.rank), self._session.world.shared
        self._wait([name], [0])
        own: Value = wire.read(store.get(name))
        store.delete_key(name)
        return own

    def _name(self, word: str, rank: int) -> str:
        return f"{self._key}/{self._num_calls}{word}{rank}"

    def _set(self, word: str, rank: int, data: bytes) -> None:
        if self.world_size > 1:
            self._session.world.shared.set(self._name(word, rank), data)

    def _forget_told(self) -> None:
        while self._told:
            self._session.world.shared.delete_key(self._told.pop())

    def _wait(self, names: Sequence[str], senders: Sequence[int]) -> None:
        if wait_for(self._session, *names):
            return
        store = self._session.world.shared
        sender, name = next(
            (pair for pair in zip(senders, names, strict=True) if not store.check([pair[1]])),
            (senders[0], names[0]),
        )
        raise CheckpointError(
            f"rank {sender} did not write its part of a checkpoint within"
            f" {self._session.timeout.total_seconds():g} s ({name})"
        )


def wait_for(session: Context, *keys: str) -> bool:
    """Wait until ranks have set these keys. Return False if the session's timeout came first."""
    assert session.job is not None
    return session.job.wait_until(
        lambda store: bool(store.check(keys)), session.timeout.total_seconds()
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
