"""How ranks exchange values while they write and choose checkpoints.

They use the store instead of collectives, so that a thread may write checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar

from torchbus.plugin import Context, SharedStore, TorchbusError, an

from torchbus_checkpoint._compat import kinds_of_dcp
from torchbus_checkpoint.errors import CheckpointError
from torchbus_checkpoint.state.jsonable import from_json, to_json

Value = TypeVar("Value")


class CheckpointExchange:
    """Exchanges the values for one checkpoint. No other exchange may use the same ``key``.

    All ranks must call the same methods in the same order.
    """

    def __init__(self, session: Context, key: str) -> None:
        self._session = session
        self._key = key
        self._num_calls = 0
        self._sent: list[str] = []
        self.rank, self.world_size, self.is_main = session.rank, session.world_size, session.is_main

    def wait_for_rank0(self) -> None:
        """Wait until rank 0 calls this, too. By then it has read the gathered values."""
        self._num_calls += 1
        if self.is_main:
            self._set("", 0, b"")
        else:
            self._wait([self._name("", 0)], [0])
            self._delete_sent()

    def gather(self, mine: Value) -> list[Value]:
        """Return the value of each rank on rank 0, and an empty list on the others.

        Rank 0 reads all values in one request.
        """
        self._num_calls += 1
        if not self.is_main:
            self._set("from", self.rank, written(mine))
            self._sent.append(self._name("from", self.rank))
            return []
        ranks = range(1, self.world_size)
        names = [self._name("from", rank) for rank in ranks]
        others: list[Value] = list(map(read, self._wait(names, ranks))) if names else []
        return [mine, *others]

    def scatter(self, theirs: list[Value]) -> Value:
        """Scatter: each rank gets its value from the list that rank 0 passes, in one request."""
        self._num_calls += 1
        if self.is_main:
            reported = {self._name("for", rank): one for rank, one in enumerate(theirs) if rank}
            if reported:
                store = self._session.world.shared
                store.set_all({name: written(one) for name, one in reported.items()})
            return theirs[0]
        name = self._name("for", self.rank)
        ours: Value = read(*self._wait([name], [0]))
        self._session.world.shared.delete_key(name)
        return ours

    def _name(self, word: str, rank: int) -> str:
        return f"{self._key}/{self._num_calls}{word}{rank}"

    def _set(self, word: str, rank: int, data: bytes) -> None:
        if self.world_size > 1:
            self._session.world.shared.set(self._name(word, rank), data)

    def _delete_sent(self) -> None:
        while self._sent:
            self._session.world.shared.delete_key(self._sent.pop())

    def _wait(self, names: Sequence[str], senders: Sequence[int]) -> list[bytes]:
        found = wait_for(self._session, *names)
        if found is None:
            late = _first_missing(self._session.world.shared, names)
            raise CheckpointError(
                f"rank {senders[late]} did not write its part of a checkpoint within"
                f" {self._session.timeout.total_seconds():g} s ({names[late]}). {SLOW}"
            )
        return found


SLOW = "Look at that rank's output; if its disk is slow, pass a longer timeout_s"


def _first_missing(store: SharedStore, names: Sequence[str]) -> int:
    """Return the index of the first missing value by bisection, with few requests."""
    first, end = 0, len(names)
    while end - first > 1:
        middle = (first + end) // 2
        first, end = (middle, end) if store.check(names[first:middle]) else (first, middle)
    return first


def wait_for(session: Context, *keys: str) -> list[bytes] | None:
    """Return the values of the keys once all are set, or None after the session's timeout."""
    assert session.job is not None
    found: list[bytes] = []

    def is_there(store: SharedStore) -> bool:
        found[:] = store.read_all(keys) or ()
        return len(found) == len(keys)

    return found if session.job.wait_until(is_there, session.timeout.total_seconds()) else None


def agree(session: Context, key: str, choose: Callable[[], str]) -> str:
    """Return the text that ``choose`` returns on rank 0, on every rank, without a collective.

    If ``choose`` raises a TorchbusError, all ranks raise an error with its message.
    """
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
        raise CheckpointError(
            "rank 0 did not say which checkpoint to resume from within"
            f" {session.timeout.total_seconds():g} s. {SLOW}"
        )
    text = found[0].decode()
    if text[0] == "-":
        raise CheckpointError(text[1:])
    return text[1:]


def written(value: object) -> bytes:
    """Write plain values, lists, tuples, dicts, and plans of torch.distributed.checkpoint (DCP).

    Raises TypeError for anything else.
    """
    return json.dumps(_plain(value)).encode()


def read(data: bytes) -> Any:
    """Read what ``written`` wrote. Raises ValueError or KeyError for anything else."""
    return _object(json.loads(data))


def _plain(value: object) -> object:
    return to_json(value, _part)


def _part(value: object) -> object:
    name = type(value).__name__
    if _kinds().get(name) is not type(value):
        raise TypeError(
            f"{an(f'{type(value).__module__}.{name}')} in a checkpoint's plan: ranks exchange only"
            " plain values and torch's own plans"
        )
    if isinstance(value, Enum):
        return {name: value.name}
    assert is_dataclass(value)
    return {name: {field.name: _plain(getattr(value, field.name)) for field in fields(value)}}


def _object(value: object) -> Any:
    return from_json(value, _made)


def _made(name: str, parts: Any) -> object:
    kind: Any = _kinds()[name]
    if isinstance(parts, dict):
        return kind(**{name: _object(one) for name, one in parts.items()})
    return kind[parts]


@cache
def _kinds() -> dict[str, Callable[..., Any]]:
    """Return the classes that plans consist of, by name. The import is slow, so it is late."""
    from torch.distributed.checkpoint import metadata, planner

    of_dcp: Sequence[Any] = (
        planner.SavePlan,
        planner.WriteItem,
        planner.WriteItemType,
        planner.TensorWriteData,
        metadata.MetadataIndex,
        metadata.ChunkStorageMetadata,
        metadata.TensorProperties,
        *kinds_of_dcp(),
    )
    return {kind.__name__: kind for kind in of_dcp}
