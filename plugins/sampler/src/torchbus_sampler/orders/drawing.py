"""The order of one pass, as far as it is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torchbus_sampler.orders.draws import Draws
from torchbus_sampler.orders.shared import OrderArray, SharedArrays, checksum_of


class Order(Protocol):
    """``total`` indices. ``checksum``: of what an order consists of besides its pieces."""

    total: int
    checksum: int

    def reach(self, start: int, stop: int) -> None:
        """Draw all that the sampler has drawn when it has yielded ``stop`` indices.

        Indices before ``start`` will not be read again.
        """

    def finish(self, start: int) -> None:
        """Draw all that the sampler has drawn when it has raised StopIteration."""

    def indices(self, start: int, stop: int) -> list[Any]:
        """Return what it yields. Call ``reach`` before."""

    def digest(self, stop: int) -> int:
        """Return a number that is equal on ranks with the same order.

        It covers the piece that has index number ``stop - 1``, up to the end of its block.
        """

    def close(self) -> None:
        """Release the memory."""


class Range:
    """The order of SequentialSampler, which draws and keeps nothing."""

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
    """Pieces of the order, each an array. Those before the pass's place are released."""

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
    """The order of SubsetRandomSampler: its indices at the places that are drawn."""

    def __init__(self, draws: Draws, memory: SharedArrays, chosen: Sequence[object]) -> None:
        super().__init__(draws, memory)
        self._chosen = chosen
        self.checksum = checksum_of(chosen)

    def indices(self, start: int, stop: int) -> list[Any]:
        return [self._chosen[place] for place in super().indices(start, stop)]
