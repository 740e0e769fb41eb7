"""Balances layers over stages."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from torch.nn import Module


def by_weight(weights: Sequence[float], stages: int) -> list[int]:
    """Cut a row of weights into consecutive groups, so that the heaviest is as light as possible.

    Each group has at least one member.

    >>> by_weight([1, 1, 1, 9, 1, 1], 3)
    [3, 1, 2]
    """
    total, count = [0.0, *accumulate(weights)], len(weights)
    none: list[int] = []
    rows = [{0: (0.0, none)}]  # for each number of groups: end -> (heaviest, sizes)
    for group in range(1, stages + 1):
        row: dict[int, tuple[float, list[int]]] = {}
        for end in range(group, count - (stages - group) + 1):
            row[end] = min(
                (
                    (max(heaviest, total[end] - total[start]), [*sizes, end - start])
                    for start, (heaviest, sizes) in rows[-1].items()
                    if start < end
                ),
                key=lambda found: (found[0], sum(size * size for size in found[1])),
            )
        rows.append(row)
    return rows[-1][count][1]


def by_parameters(layers: Sequence[Module], stages: int) -> list[int]:
    """Cut layers into stages by the number of their parameters."""
    return by_weight([1.0 + sum(p.numel() for p in one.parameters()) for one in layers], stages)
