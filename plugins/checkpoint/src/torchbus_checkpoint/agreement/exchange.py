"""How ranks exchange values while they write and choose checkpoints.

They use the store instead of a collective, so that a thread may do it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from torchbus.plugin import Context, SharedStore, TorchbusError

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
        others: list[Value] = list(map(wire.read, self._wait(names, ranks))) if names else []
        return [mine, *others]

    def scatter(self, theirs: list[Value]) -> Value:
        """Give each rank its own value from the list that rank 0 passes.

        Rank 0 tells all at once.
        """
        self._num_calls += 1
        if self.is_main:
            told = {self._name("for", rank): one for rank, one in enumerate(theirs) if rank}
            if told:
                store = self._session.world.shared
                store.set_all({name: wire.written(one) for name, one in told.items()})
            return theirs[0]
        name = self._name("for", self.rank)
        own: Value = wire.read(*self._wait([name], [0]))
        self._session.world.shared.delete_key(name)
        return own

    def _name(self, word: str, rank: int) -> str:
        return f"{self._key}/{self._num_calls}{word}{rank}"

    def _set(self, word: str, rank: int, data: bytes) -> None:
        if self.world_size > 1:
            self._session.world.shared.set(self._name(word, rank), data)

    def _forget_told(self) -> None:
        while self._told:
            self._session.world.shared.delete_key(self._told.pop())

    def _wait(self, names: Sequence[str], senders: Sequence[int]) -> list[bytes]:
        found = wait_for(self._session, *names)
        if found is None:
            late = _first_missing(self._session.world.shared, names)
            raise CheckpointError(
                f"rank {senders[late]} did not write its part of a checkpoint within"
                f" {self._session.timeout.total_seconds():g} s ({names[late]})"
            )
        return found


def _first_missing(store: SharedStore, names: Sequence[str]) -> int:
    """Return the place of the first value that is not there, by halves: few requests for many."""
    first, end = 0, len(names)
    while end - first > 1:
        middle = (first + end) // 2
        first, end = (middle, end) if store.check(names[first:middle]) else (first, middle)
    return first


def wait_for(session: Context, *keys: str) -> list[bytes] | None:
    """Return what ranks have set, once all is there; None if the session's timeout came first."""
    assert session.job is not None
    found: list[bytes] = []

    def is_there(store: SharedStore) -> bool:
        found[:] = store.read_all(keys) or ()
        return len(found) == len(keys)

    return found if session.job.wait_until(is_there, session.timeout.total_seconds()) else None


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
    found = wait_for(session, key)
    if found is None:
        raise CheckpointError("rank 0 did not say which checkpoint to resume from")
    text = found[0].decode()
    if text[0] == "-":
        raise CheckpointError(text[1:])
    return text[1:]
