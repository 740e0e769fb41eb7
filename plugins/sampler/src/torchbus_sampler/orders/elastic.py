"""An order that is divided again between two steps, for ranks that come and go."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any

import torch
from torch.utils.data import DataLoader
from torchbus.plugin import Context, Share, Unsupported

from torchbus_sampler._compat import index_sampler
from torchbus_sampler.ledger import Ledger
from torchbus_sampler.order import DividedOrder, share_out
from torchbus_sampler.orders.shared import digest
from torchbus_strategy import random_streams
from torchbus_strategy.elastic import Place

STREAM = (
    "a loader over {}, an IterableDataset: a stream can't be divided again when a replica comes or"
    " goes. Use a map-style dataset, or let the dataset divide itself, with replace_sampler=False"
)


def refuse_stream(session: Context, dataset: object) -> None:
    """Raise Unsupported while streams can't be divided."""
    if session.world.divides_anew:
        raise Unsupported(STREAM.format(type(dataset).__name__))


def in_phrases(session: Context, local_batch: bool, batch_size: int | None) -> str:
    """Describe for ``explain()`` how the loader's batches are divided."""
    parts = session.world.data.parts
    over = f"{parts} ranks" if parts == session.world_size else f"{parts} groups of ranks"
    if session.world.divides_anew:
        over = f"{parts} ranks of all replicas, again when one comes or goes,"
    if local_batch:
        idle = without_samples(parts, batch_size)
        words = f"; {idle} of them have none, as each gets two samples at least" if idle else ""
        return f"divided, each batch over {over}{words}"
    return f"divided, {batch_size or 'a batch'} x {over} a step"


def without_samples(parts: int, batch_size: int | None) -> int:
    """Return how many ranks get no samples of a batch, because the others get two or more each."""
    return 0 if batch_size is None else parts - min(parts, max(1, batch_size // 2))


class ElasticIndices(DividedOrder):
    """The order of a pass, which is also its iterator. See ``ElasticOrder``.

    Its numbers count the user's own batches. ``_buffer`` has the batches that were drawn but not
    used, beginning with number ``_used``.
    """

    def __init__(
        self,
        session: Context,
        loader: DataLoader[object],
        batched: bool,
        local_batch: bool,
        ledger: Ledger | None,
    ) -> None:
        super().__init__(index_sampler(loader), 0, 1, 1, batched, session.random)
        self._session = session
        self._local_batch = local_batch
        self._ledger = None if ledger is None else ledger.of_pass(loader)
        self._drawing: Iterator[Sequence[object]] | None = None
        self._began: Place = {}
        self._buffer: deque[Sequence[object]] = deque()
        self._used = self._yielded = self._drawn = 0
        self._ends: deque[int] = deque()
        self._last: Any = None

    # The iterator --------------------------------------------------------------------------------

    def __iter__(self) -> ElasticIndices:
        return self

    def __next__(self) -> object:
        part, parts = self._session.world.data
        batches = self._step_at(self._drawn)
        if not batches:
            raise StopIteration
        shares = share_out(batches, parts, self._batch_size(), 1 if self._single else 2)
        samples = [index for share in shares for index in share]
        mine, position = shares[part], digest(samples, self._drawn)
        self._drawn += len(batches)
        self._ends.append(self._drawn)
        weight = len(mine) * parts / len(samples)
        self.pending.append(Share(weight, position, tuple(mine), len(samples)))
        self._last = mine or self._last or shares[0]
        return self._last[0] if self._single else self._last

    def _step_at(self, start: int) -> list[Sequence[object]]:
        """Return the user's batches of the step that begins at number ``start``; [] at the end."""
        per_step = 1 if self._local_batch else self._session.world.data.parts
        found = self._at(start, per_step)
        is_short = len(found) < per_step and getattr(self._inner, "drop_last", False)
        return [] if is_short else found

    def _at(self, start: int, count: int) -> list[Sequence[object]]:
        """Return at most ``count`` of the user's batches, from number ``start`` on."""
        self.begin()
        assert self._drawing is not None
        missing = start + count - self._used - len(self._buffer)
        self._buffer.extend(islice(self._drawing, max(0, missing)))
        return list(islice(self._buffer, start - self._used, start - self._used + count))

    def take(self) -> Share:
        self._yielded = self._ends.popleft()
        return super().take()

    def forget(self, count: int) -> None:
        """Drop skipped batches, which a step has used in an earlier run."""
        for _ in range(count):
            self.take()
        while self._used < self._yielded:
            self._buffer.popleft()
            self._used += 1

    def skip(self, count: int) -> None:
        """Skip ``count`` steps. Raises StopIteration if there are fewer."""
        for _ in range(count):
            next(self)

    # See ElasticOrder ----------------------------------------------------------------------------

    def begin(self) -> None:
        if self._drawing is None:
            with self._random.order():
                random = random_streams.read()
            states = [one.get_state() for one in self._generators()]
            self._began = {"random": random, "generators": states}
            self._drawing = chain.from_iterable(self._draw(1))

    def has_more(self) -> bool:
        return bool(self._step_at(self._yielded))

    def commit(self) -> None:
        if self._yielded == self._used:
            return
        used = [self._buffer.popleft() for _ in range(self._yielded - self._used)]
        if self._ledger is not None:
            self._ledger.commit(self._used, self._yielded, list(chain(*used)))
        self._used = self._yielded

    def take_back(self) -> None:
        self._yielded = self._drawn = self._used
        self.pending.clear()
        self._ends.clear()

    def place(self) -> Place:
        self.begin()
        number = 0 if self._ledger is None else self._ledger.number
        return {"began": self._began, "used": self._used, "pass": number}

    def go_to(self, place: Place | None) -> None:
        self._buffer.clear()
        self._used, self._drawing = 0, iter(()) if place is None else None
        self.take_back()
        if place is None:
            return
        with self._random.order():
            random_streams.write(place["began"]["random"])
        for one, state in zip(self._generators(), place["began"]["generators"], strict=True):
            one.set_state(state)
        if self._ledger is not None:
            self._ledger.go_to(place["pass"])
        self._at(0, place["used"] + 1)  # torch's samplers draw at the first index
        for _ in range(place["used"]):
            self._buffer.popleft()
        self._used = place["used"]
        self.take_back()

    def _generators(self) -> list[torch.Generator]:
        """Return the generators that the user's sampler owns and draws from."""
        holders = (self._inner, getattr(self._inner, "sampler", None))
        found = [getattr(one, "generator", None) for one in holders]
        return [one for one in found if isinstance(one, torch.Generator)]
