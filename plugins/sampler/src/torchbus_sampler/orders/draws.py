"""How torch's samplers draw: how many indices at a time, by which call, and what they draw beyond the last one."""

from __future__ import annotations

from hashlib import blake2b
from typing import Protocol

import torch
from torch import Generator, Tensor
from torch.utils.data import WeightedRandomSampler

CHUNK = 32  # torch draws so many with replacement at a time
PIECES = (2**12, 2**22)  # of a generator that nobody else draws from, more can be drawn ahead; the first piece and the largest
SCRATCH = 2**16


class Draws(Protocol):
    """``total``: indices in a pass. ``generator``: from which all is drawn. ``shared``: pieces may be large, so that the ranks of a node should
    have them together. ``name``: what else than the generator's state decides about a piece; equal names and states draw the same."""

    total: int
    generator: Generator
    shared: bool

    @property
    def name(self) -> str: ...

    def piece(self, drawn: int, start: int, stop: int) -> int:
        """How many indices are drawn next, of ``drawn`` so far, for those from ``start`` to ``stop`` to be there."""

    def fill(self, out: Tensor) -> None:
        """Draw them."""

    def pass_by(self, length: int) -> None:
        """Draw them, and keep none."""

    def finish(self) -> None:
        """Draw what the sampler draws when it is asked for more than it has."""


class Permutations:
    """One permutation of ``length`` after another: RandomSampler without replacement, and the places of SubsetRandomSampler. ``one_more``: a
    pass that ends with a whole permutation draws another."""

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
        nowhere = torch.empty(1, dtype=torch.int64).expand(self._length)  # all of it is one number
        torch.randperm(self._length, generator=self.generator, out=nowhere)

    def finish(self) -> None:
        if self._one_more:
            self.pass_by(self._length)


class Weighted:
    """All at once, by weights."""

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
        torch.multinomial(sampler.weights, self.total, sampler.replacement, generator=self.generator, out=out)

    def pass_by(self, length: int) -> None:
        self.fill(torch.empty(length, dtype=torch.int64))

    def finish(self) -> None:
        pass


class WithReplacement:
    """Independent numbers. ``ahead``: nobody else draws from the generator, so that pieces may be larger than what is needed now."""

    shared = False  # small, so that each rank draws for itself
    name = "with replacement"

    def __init__(self, high: int, total: int, generator: Generator, ahead: bool) -> None:
        self._high = high
        self.total = total
        self.generator = generator
        self._ahead = ahead

    def piece(self, drawn: int, start: int, stop: int) -> int:
        if start - drawn >= CHUNK:
            return start // CHUNK * CHUNK - drawn  # to be passed by
        least = -(-stop // CHUNK) * CHUNK - drawn
        smallest, largest = PIECES
        return min(max(least, min(max(drawn, smallest), largest)) if self._ahead else least, self.total - drawn)

    def fill(self, out: Tensor) -> None:
        torch.randint(self._high, (len(out),), generator=self.generator, out=out)

    def pass_by(self, length: int) -> None:
        scratch = torch.empty(min(length, SCRATCH), dtype=torch.int64)
        for start in range(0, length, len(scratch)):
            self.fill(scratch[: length - start])

    def finish(self) -> None:
        pass
