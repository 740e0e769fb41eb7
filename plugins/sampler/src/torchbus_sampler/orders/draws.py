"""How torch's samplers draw: how many indices at a time, by which call, and what after the last."""

from __future__ import annotations

from hashlib import blake2b
from typing import Protocol

import torch
from torch import Generator, Tensor
from torch.utils.data import WeightedRandomSampler

CHUNK = 32  # the number of indices that torch draws at a time, with replacement
WHOLE = 2**26  # indices in one piece at most, if only the sampler draws from the generator
PIECES = (2**12, 2**22)  # otherwise, the first and the largest piece
SCRATCH = 2**16


class Draws(Protocol):
    """The draws of one pass.

    ``total`` is the number of indices, and ``generator`` the one from which they are drawn.
    ``shared`` is True if pieces may be large, so that the ranks of a node should share them. Two
    ranks with the same ``name`` and the same state of the generator draw the same indices.
    """

    total: int
    generator: Generator
    shared: bool

    @property
    def name(self) -> str: ...

    def piece(self, drawn: int, start: int, stop: int) -> int:
        """Return how many indices to draw next, to get those from ``start`` to ``stop``.

        ``drawn`` is the number of indices drawn before.
        """

    def fill(self, out: Tensor) -> None:
        """Draw indices into ``out``, an int64 tensor of their length."""

    def pass_by(self, length: int) -> None:
        """Draw ``length`` indices, and discard them."""

    def finish(self) -> None:
        """Draw what the sampler draws before it raises StopIteration."""


class Permutations:
    """One permutation of ``length`` after another.

    RandomSampler without replacement draws in this way, and SubsetRandomSampler, for places in its
    indices. With ``one_more``, a pass that ends with a whole permutation draws another one.
    """

    shared = True

    def __init__(self, length: int, total: int, generator: Generator, one_more: bool) -> None:
        self._length = length
        self.total = total
        self.generator = generator
        self._one_more = total % length == 0 and one_more

    @property
    def name(self) -> str:
        return f"permutation of {self._length}"

    def piece(self, drawn: int, start: int, stop: int) -> int:
        return self._length

    def fill(self, out: Tensor) -> None:
        torch.randperm(self._length, generator=self.generator, out=out)

    def pass_by(self, length: int) -> None:
        nowhere = torch.empty(1, dtype=torch.int64).expand(self._length)  # memory of one number
        torch.randperm(self._length, generator=self.generator, out=nowhere)

    def finish(self) -> None:
        if self._one_more:
            self.pass_by(self._length)


class Weighted:
    """All indices at once, by weights."""

    shared = True

    def __init__(self, sampler: WeightedRandomSampler, generator: Generator) -> None:
        self._sampler = sampler
        self.total = sampler.num_samples
        self.generator = generator

    @property
    def name(self) -> str:
        summed = blake2b()
        for part in self._sampler.weights.split(SCRATCH):
            summed.update(repr(part.tolist()).encode())
        return f"{self.total} of {summed.hexdigest()} {self._sampler.replacement}"

    def piece(self, drawn: int, start: int, stop: int) -> int:
        return self.total

    def fill(self, out: Tensor) -> None:
        sampler = self._sampler
        torch.multinomial(
            sampler.weights, self.total, sampler.replacement, generator=self.generator, out=out
        )

    def pass_by(self, length: int) -> None:
        self.fill(torch.empty(length, dtype=torch.int64))

    def finish(self) -> None:
        pass


class WithReplacement:
    """Independent indices, drawn with replacement.

    ``ahead`` is True if no other code draws from the generator. Then pieces may be larger than
    needed now.
    """

    def __init__(self, high: int, total: int, generator: Generator, ahead: bool) -> None:
        self._high = high
        self.total = total
        self.generator = generator
        self._ahead = ahead
        self.shared = ahead and total <= WHOLE  # otherwise, each rank draws smaller pieces

    @property
    def name(self) -> str:
        return f"with replacement of {self._high}"

    def piece(self, drawn: int, start: int, stop: int) -> int:
        if self.shared:
            return self.total
        if start - drawn >= CHUNK:
            return start // CHUNK * CHUNK - drawn  # these are skipped
        least = -(-stop // CHUNK) * CHUNK - drawn
        smallest, largest = PIECES
        return min(
            max(least, min(max(drawn, smallest), largest)) if self._ahead else least,
            self.total - drawn,
        )

    def fill(self, out: Tensor) -> None:
        torch.randint(self._high, (len(out),), generator=self.generator, out=out)

    def pass_by(self, length: int) -> None:
        scratch = torch.empty(min(length, SCRATCH), dtype=torch.int64)
        for start in range(0, length, len(scratch)):
            self.fill(scratch[: length - start])

    def finish(self) -> None:
        pass
