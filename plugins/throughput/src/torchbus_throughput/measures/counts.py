"""How many samples and tokens the loop has trained on: each batch that fed a backward, once."""

from __future__ import annotations

import operator
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torchbus.plugin import Context, LoaderIterator, Origin, UsageError, warn

from torchbus_strategy.batches import Taken
from torchbus_throughput.measures import tokens as token_counts
from torchbus_throughput.measures.tokens import Tokens


class Tally(NamedTuple):
    """Counts since the session began, on this rank.

    ``rows``: samples that went through the model, also those that a rank without samples repeats.
    ``samples``: without these. ``own_samples``: those that no other rank has as well, so that a sum
    over ranks counts each once. ``silent``: batches that did not show their number of tokens.
    """

    steps: int = 0
    batches: int = 0
    rows: int = 0
    samples: int = 0
    tokens: int = 0
    own_samples: int = 0
    own_tokens: int = 0
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
        self._feeding: tuple[Taken, ...] = ()
        self._counted: set[Taken] = set()
        self._of_batch: WeakKeyDictionary[Origin, dict[int, int | UsageError]] = WeakKeyDictionary()
        self._has_warned = False
        self.steps = self._batches_fed = self._rows = self._silent = 0
        self._samples = self._counted_tokens = self._own_samples = self._own_tokens = 0

    @property
    def now(self) -> Tally:
        """The counts until now."""
        return Tally(
            self.steps,
            self._batches_fed,
            self._rows,
            self._samples,
            self._counted_tokens,
            self._own_samples,
            self._own_tokens,
            self._batches_fed if self._tokens is None else self._silent,
        )

    def took(self, batch: object, iterator: LoaderIterator) -> None:
        """The loop gets a batch. Keep its number of tokens, or what is wrong with it."""
        if self._tokens is None or not torch.is_grad_enabled() or iterator.origin.evaluates:
            return
        found: int | UsageError
        try:
            found = token_counts.count(batch, self._tokens)
        except UsageError as error:
            found = error
        self._of_batch.setdefault(iterator.origin, {})[iterator.taken] = found

    def fed(self) -> None:
        """A backward begins. Count the batches that feed it, unless they are counted."""
        feeding = self._batches.feeding
        if feeding is self._feeding:
            return
        self._feeding = feeding
        for taken in feeding:
            if taken not in self._counted:
                self._counted.add(taken)
                self._count(taken)

    def stepped(self) -> int:
        """An optimizer has stepped. Return the number of the loop's real step.

        Batches that fed it may feed another one later.
        """
        if self._steps.count != self._step:
            self._step = self._steps.count
            self.steps += 1
            if len(self._counted) > len(self._feeding):
                self._counted = set(self._feeding)
        return self._step

    def _count(self, taken: Taken) -> None:
        share = taken.share
        if taken.origin.loader is None and share is not None and not share.count:
            return  # it stands for the end of s.shard(...)
        rows = taken.rows
        if share is not None and share.indices and taken.origin.loader is not None:
            rows = len(share.indices)
        self._batches_fed += 1
        self._rows += rows
        if share is not None and share.weight <= 0:
            return  # only repeated
        own = self._is_own(taken)
        self._samples += rows
        self._own_samples += rows * own
        if self._tokens is not None:
            tokens = self._tokens_of(taken)
            self._silent += tokens is None
            self._counted_tokens += tokens or 0
            self._own_tokens += (tokens or 0) * own

    def _is_own(self, taken: Taken) -> bool:
        """Whether this rank counts it in a sum over ranks. Of ranks with equal data, the first."""
        world = self._session.world
        if taken.origin.alike or world.data.parts == 1:
            return world.is_main
        return world.member == 0

    def _tokens_of(self, taken: Taken) -> int | None:
        """Return its number of tokens, None if it is not known.

        Raises UsageError if the first batch does not show it.
        """
        found = self._of_batch.get(taken.origin, {}).pop(taken.number, None)
        if not isinstance(found, UsageError):
            return found
        if self._batches_fed == 1:
            raise found
        if not self._has_warned:
            self._has_warned = True
            warn(f"{found}. Training continues, and tokens are not counted in this window")
        return None
