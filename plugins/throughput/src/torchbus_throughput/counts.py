"""How many samples and tokens the loop has trained on: each batch that fed a backward, once."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torchbus.plugin import Context, LoaderIterator, Origin, UsageError, an, warn

from torchbus_strategy.batches import TrackedBatch


class Tally(NamedTuple):
    """Counts since the session began, on this rank.

    ``rows``: samples that went through the model, also those that a rank without samples repeats.
    ``samples``: without these. ``local_samples``: those that no other rank has as well, so that a
    sum over ranks counts each once. ``silent``: batches that did not show their number of tokens.
    """

    steps: int = 0
    batches: int = 0
    rows: int = 0
    samples: int = 0
    tokens: int = 0
    local_samples: int = 0
    local_tokens: int = 0
    silent: int = 0

    def since(self, before: Tally) -> Tally:
        """Return what was added."""
        return Tally(*map(operator.sub, self, before))


class Counts:
    """Counts a batch when it feeds a backward.

    A batch that feeds several backwards in a row counts once. A batch of evaluation feeds none.
    """

    def __init__(self, session: Context, tokens: Tokens | None) -> None:
        self._session = session
        self._steps = session.steps.follow()
        self._step = self._steps.count
        self._batches = session.batches
        self._batches.follow()
        self._tokens = tokens
        self._current: tuple[TrackedBatch, ...] = ()
        self._counted: set[TrackedBatch] = set()
        self._of_batch: WeakKeyDictionary[Origin, dict[int, int | UsageError]] = WeakKeyDictionary()
        self._has_warned = False
        self.steps = self._batches_used = self._rows = self._silent = 0
        self._samples = self._counted_tokens = self._local_samples = self._local_tokens = 0

    @property
    def now(self) -> Tally:
        """The counts until now."""
        return Tally(
            self.steps,
            self._batches_used,
            self._rows,
            self._samples,
            self._counted_tokens,
            self._local_samples,
            self._local_tokens,
            self._batches_used if self._tokens is None else self._silent,
        )

    def record(self, batch: object, iterator: LoaderIterator) -> None:
        """The loop gets a batch. Keep its number of tokens, or what is wrong with it."""
        if self._tokens is None or not torch.is_grad_enabled() or iterator.origin.evaluates:
            return
        found: int | UsageError
        try:
            found = count(batch, self._tokens)
        except UsageError as error:
            found = error.with_traceback(None)  # it would keep the batch alive
        self._of_batch.setdefault(iterator.origin, {})[iterator.num_yielded] = found

    def count_batches(self) -> None:
        """A backward begins. Count the batches that feed it, unless they are counted."""
        current = self._batches.current
        if current is self._current:
            return
        self._current = current
        for batch in current:
            if batch not in self._counted:
                self._counted.add(batch)
                self._count(batch)

    def stepped(self) -> int:
        """An optimizer has stepped. Return the number of the loop's real step.

        Batches that fed it may feed another one later.
        """
        if self._steps.count != self._step:
            self._step = self._steps.count
            self.steps += 1
            if len(self._counted) > len(self._current):
                self._counted = set(self._current)
        return self._step

    def _count(self, batch: TrackedBatch) -> None:
        share = batch.share
        if batch.origin.loader is None and share is not None and not share.count:
            return  # it marks the end of s.shard(...)
        rows = batch.rows
        if share is not None and share.indices and batch.origin.loader is not None:
            rows = len(share.indices)
        self._batches_used += 1
        self._rows += rows
        if share is not None and share.weight <= 0:
            return  # a repeated batch
        mine = self._is_local(batch)
        self._samples += rows
        self._local_samples += rows * mine
        if self._tokens is not None:
            tokens = self._tokens_of(batch)
            self._silent += tokens is None
            self._counted_tokens += tokens or 0
            self._local_tokens += (tokens or 0) * mine

    def _is_local(self, batch: TrackedBatch) -> bool:
        """Whether this rank counts it in a sum over ranks. Of ranks with equal data, the first."""
        world = self._session.world
        if batch.origin.alike or world.data.parts == 1:
            return world.is_main
        return world.member == 0

    def _tokens_of(self, batch: TrackedBatch) -> int | None:
        """Return its number of tokens, None if it is not known.

        Raises UsageError if the first batch does not show it.
        """
        found = self._of_batch.get(batch.origin, {}).pop(batch.number, None)
        if not isinstance(found, UsageError):
            return found
        if self._batches_used == 1:
            raise found
        if not self._has_warned:
            self._has_warned = True
            warn(f"{found}. Training continues, and tokens are not counted in this window")
        return None


Tokens: TypeAlias = str | int | Callable[[Any], int]
"""A key, an attribute or an index of the batch, or a function from the batch to an int."""
NAMES_AT_MOST = 12


def count(batch: object, tokens: Tokens) -> int:
    """Return the number of tokens in a batch.

    A tensor has as many tokens as elements, padding included. Raises UsageError, which says what
    the batch has.
    """
    if not isinstance(tokens, str | int):
        return _of_function(batch, tokens)
    found = _part(batch, tokens)
    if isinstance(found, Tensor):
        return found.numel()
    if isinstance(found, int) and found >= 0:
        return found
    raise UsageError(
        f"the batch has {an(type(found).__name__)} as {tokens!r}, which tokens= names: a tensor or"
        " a count is needed. Pass a function from the batch to an int"
    )


def _of_function(batch: object, function: Callable[[Any], int]) -> int:
    name = getattr(function, "__name__", type(function).__name__)
    try:
        found = function(batch)
    except Exception as error:
        raise UsageError(
            f"tokens={name}: it raised {error!r} for a batch that is {described(batch)}"
        ) from error
    if not isinstance(found, int) or isinstance(found, bool):
        raise UsageError(
            f"tokens={name}: it returned {an(type(found).__name__)}, and must return an int that"
            " the host knows, such as batch['input_ids'].numel()"
        )
    if found < 0:
        raise UsageError(f"tokens={name}: it returned {found}, and a count must be 0 or more")
    return found


def _part(batch: Any, where: str | int) -> object:
    if isinstance(batch, Mapping) and where in batch:
        return batch[where]
    if isinstance(where, str) and hasattr(batch, where):
        return getattr(batch, where)
    if isinstance(where, int) and isinstance(batch, Sequence) and -len(batch) <= where < len(batch):
        return batch[where]
    raise UsageError(
        f"the batch has no {where!r}, which tokens= names as a key, an attribute or an index: it is"
        f" {described(batch)}"
    )


def described(batch: object) -> str:
    """Describe the contents of a batch."""
    kind = type(batch).__name__
    if isinstance(batch, Mapping):
        return f"{an(kind)} with the keys {_listed(map(repr, batch))}"
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        return f"{an(kind)} of {len(batch)}: {_listed(type(part).__name__ for part in batch)}"
    names = [] if isinstance(batch, Tensor) else [*getattr(batch, "__dict__", ())]
    return an(kind) + (f" with the attributes {_listed(names)}" if names else "")


def _listed(names: Any) -> str:
    found = list(names)
    more = [f"and {len(found) - NAMES_AT_MOST} more"] if len(found) > NAMES_AT_MOST else []
    return ", ".join([*found[:NAMES_AT_MOST], *more])
