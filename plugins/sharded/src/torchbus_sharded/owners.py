"""Which rank keeps the optimizer's state of which parameter."""

from __future__ import annotations

from collections.abc import Sequence


class Owners:
    """Largest first, each to the rank that has least; what is added later does not move the others.

    >>> owners = Owners(2)
    >>> owners.add([10, 7, 6, 1])
    >>> owners.of
    [0, 1, 1, 0]
    """

    def __init__(self, ranks: int) -> None:
        self.of: list[int] = []
        self._held = [0] * ranks

    def add(self, sizes: Sequence[int]) -> None:
        """Numbers of elements of further parameters. All ranks call it alike."""
        given = [0] * len(sizes)
        for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
            given[index] = self._held.index(min(self._held))
            self._held[given[index]] += sizes[index]
        self.of += given
