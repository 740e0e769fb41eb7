"""The order of one pass of torch's own samplers, which is known without iterating them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol, TypeGuard

import torch
from torch import Generator, Tensor
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from torchbus_sampler.orders.draws import Draws, Permutations, Weighted, WithReplacement
from torchbus_sampler.orders.shared import OrderArray, SharedArrays, checksum_of

MODULE = "torch.utils.data.sampler"


class Order(Protocol):
    """An order of ``total`` indices. ``checksum`` covers what is not in its drawn pieces."""

    total: int
    checksum: int

    def reach(self, start: int, stop: int) -> None:
        """Draw everything that the sampler has drawn when it has yielded ``stop`` indices.

        Indices before ``start`` will not be read again.
        """

    def finish(self, start: int) -> None:
        """Draw everything that the sampler has drawn when it has raised StopIteration."""

    def indices(self, start: int, stop: int) -> list[Any]:
        """Return the indices from ``start`` to ``stop``. Call ``reach`` first."""

    def digest(self, stop: int) -> int:
        """Return a number that is equal on ranks with the same order.

        The number covers the piece with index number ``stop - 1``, up to the end of that block.
        """

    def close(self) -> None:
        """Release the memory."""


class Range:
    """The order of SequentialSampler, which draws and stores nothing."""

    checksum = 0

    def __init__(self, total: int) -> None:
        self.total = total

    def reach(self, start: int, stop: int) -> None:
        pass

    def finish(self, start: int) -> None:
        pass

    def indices(self, start: int, stop: int) -> list[Any]:
        return list(range(start, stop))

    def digest(self, stop: int) -> int:
        return 0

    def close(self) -> None:
        pass


class Drawing:
    """An order drawn in pieces, each an array. Pieces before the pass's place are released."""

    checksum = 0

    def __init__(self, draws: Draws, memory: SharedArrays) -> None:
        self.total = draws.total
        self._draws = draws
        self._memory = memory
        self._pieces: list[tuple[int, int, OrderArray]] = []  # from, to, array
        self._drawn = 0
        self._finished = False

    def reach(self, start: int, stop: int) -> None:
        while self._pieces and self._pieces[0][1] <= start:
            del self._pieces[0]
        while self._drawn < stop:
            self._draw(start, stop)

    def _draw(self, start: int, stop: int) -> None:
        length, begin = self._draws.piece(self._drawn, start, stop), self._drawn
        end = min(begin + length, self.total)
        if end <= start:
            self._draws.pass_by(length)
        else:
            self._pieces.append((begin, end, self._memory.array(length, self._draws)))
        self._drawn = end

    def finish(self, start: int) -> None:
        self.reach(start, self.total)
        if not self._finished:
            self._finished = True
            self._draws.finish()

    def indices(self, start: int, stop: int) -> list[Any]:
        found: list[Any] = []
        for begin, end, piece in self._pieces:
            if begin < stop and start < end:
                found += piece.indices(max(start - begin, 0), min(stop, end) - begin)
        return found

    def digest(self, stop: int) -> int:
        for begin, end, piece in self._pieces:
            if begin < stop <= end:
                return piece.checksum(stop - begin)
        raise IndexError(stop)

    def close(self) -> None:
        self._pieces.clear()


class Chosen(Drawing):
    """The order of SubsetRandomSampler: its indices at drawn places."""

    def __init__(self, draws: Draws, memory: SharedArrays, chosen: Sequence[object]) -> None:
        super().__init__(draws, memory)
        self._chosen = chosen
        self.checksum = checksum_of(chosen)

    def indices(self, start: int, stop: int) -> list[Any]:
        return [self._chosen[place] for place in super().indices(start, stop)]


def is_known(sampler: Any) -> bool:
    """Whether the sampler is exactly of a torch class, and draws as this module does."""
    kind: type = type(sampler)
    if (
        kind not in MAKE
        or not _is_untouched(kind)
        or not _is_common(getattr(sampler, "generator", None))
    ):
        return False
    if kind is SubsetRandomSampler and not _is_plain(sampler.indices):
        return False
    if kind is WeightedRandomSampler and not (
        isinstance(sampler.weights, Tensor) and sampler.weights.device.type == "cpu"
    ):
        return False
    return draws_as_known(kind)


def is_batching(inner: object) -> TypeGuard[BatchSampler]:
    """Whether ``inner`` is torch's own BatchSampler."""
    return type(inner) is BatchSampler and _is_untouched(BatchSampler)


def begin(sampler: object, memory: SharedArrays) -> Order:
    """Return the order of a pass that begins now.

    This draws a seed if the sampler does, and raises what the sampler raises.
    """
    return MAKE[type(sampler)](sampler, memory)


def _sequential(sampler: SequentialSampler, memory: SharedArrays) -> Order:
    return Range(len(sampler.data_source))


def _random(sampler: RandomSampler, memory: SharedArrays) -> Order:
    length, generator, is_local = (
        len(sampler.data_source),
        sampler.generator,
        sampler.generator is None,
    )
    if is_local:
        generator = Generator()
        generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
    total = sampler.num_samples
    if sampler.replacement:
        return Drawing(WithReplacement(length, total, generator, ahead=is_local), memory)
    return Drawing(Permutations(length, total, generator, one_more=not is_local), memory)


def _subset(sampler: SubsetRandomSampler, memory: SharedArrays) -> Order:
    length = len(sampler.indices)
    if not length:
        return Range(0)
    return Chosen(
        Permutations(length, length, _generator(sampler), one_more=False), memory, sampler.indices
    )


def _weighted(sampler: WeightedRandomSampler, memory: SharedArrays) -> Order:
    return Drawing(Weighted(sampler, _generator(sampler)), memory)


MAKE: dict[type, Callable[[Any, SharedArrays], Order]] = {
    SequentialSampler: _sequential,
    RandomSampler: _random,
    SubsetRandomSampler: _subset,
    WeightedRandomSampler: _weighted,
}


def _generator(sampler: SubsetRandomSampler | WeightedRandomSampler) -> Generator:
    generator: Generator | None = sampler.generator
    return torch.default_generator if generator is None else generator


def _is_untouched(kind: type) -> bool:
    return getattr(getattr(kind, "__iter__", None), "__module__", "") == MODULE


def _is_common(generator: object) -> bool:
    """Whether it is None, or a CPU generator that the script has made."""
    if generator is None:
        return True
    return (
        isinstance(generator, Generator)
        and generator.device.type == "cpu"
        and generator is not torch.default_generator
    )


def _is_plain(indices: object) -> bool:
    return type(indices) in (list, tuple, range) or (
        hasattr(indices, "tolist") and getattr(indices, "ndim", 0) == 1
    )


@cache
def draws_as_known(kind: type) -> bool:
    """Whether this version of torch draws as this module does; tried once, on a few indices."""
    with torch.random.fork_rng(devices=[]):
        return all(_is_alike(make, stop) for make in EXAMPLES[kind] for stop in (7, 40, 41))


def _is_alike(make: Callable[[Generator], Any], stop: int) -> bool:
    (sampler, generator), (other, its) = (
        (make(one), one) for one in (Generator().manual_seed(7), Generator().manual_seed(7))
    )
    torch.default_generator.manual_seed(3)
    drawn = (
        [index for _, index in zip(range(stop), sampler, strict=False)]
        if stop <= len(sampler)
        else [*sampler]
    )
    state = torch.get_rng_state()
    torch.default_generator.manual_seed(3)
    order = begin(other, SharedArrays())
    order.reach(0, len(drawn))
    if stop > len(other):
        order.finish(0)
    stand_alike = torch.equal(generator.get_state(), its.get_state()) and torch.equal(
        state, torch.get_rng_state()
    )
    return stand_alike and order.indices(0, len(drawn)) == drawn


EXAMPLES: dict[type, list[Callable[[Generator], object]]] = {
    SequentialSampler: [lambda generator: SequentialSampler(range(40))],
    RandomSampler: [
        lambda generator: RandomSampler(range(40), generator=generator),
        lambda generator: RandomSampler(range(40)),
        lambda generator: RandomSampler(range(20), False, 40, generator),
        lambda generator: RandomSampler(range(9), True, 40, generator),
        lambda generator: RandomSampler(range(9), True, 40),
    ],
    SubsetRandomSampler: [
        lambda generator: SubsetRandomSampler(range(0, 80, 2), generator),
        lambda generator: SubsetRandomSampler(range(40)),
    ],
    WeightedRandomSampler: [
        lambda generator: WeightedRandomSampler([0.5, 2.0, 1.0], 40, True, generator),
        lambda generator: WeightedRandomSampler([1.0] * 40, 40, False, None),
    ],
}
