"""Which rank keeps the optimizer's state of which parameter."""

from __future__ import annotations

from collections.abc import Sequence

EVERY_RANK = -1
"""The owner of a tensor that each rank has for itself."""


class Owners:
    """Gives the largest tensor first, each to the rank that has least. Later ones move no others.

    >>> owners = Owners(2)
    >>> owners.add([10, 7, None, 6, 1])
    >>> owners.of
    [0, 1, -1, 1, 0]
    """

    def __init__(self, ranks: int) -> None:
        self.of: list[int] = []
        self._held = [0] * ranks

    def add(self, sizes: Sequence[int | None]) -> None:
        """Give owners to further parameters of these sizes. All ranks call it with the same ones.

        The size is None for a tensor that each rank has for itself.
        """
        given = [EVERY_RANK] * len(sizes)
        shared = [(size, index) for index, size in enumerate(sizes) if size is not None]
        for size, index in sorted(shared, key=lambda one: -one[0]):
            given[index] = self._held.index(min(self._held))
            self._held[given[index]] += size
        self.of += given
