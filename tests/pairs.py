"""Rows in the place of a full product: each pair of two factors' values is in at least one."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from typing import TypeVar

Row = TypeVar("Row", bound="tuple[object, ...]")


def mixed(rows: Iterable[Row]) -> list[Row]:
    """The rows in another order, the same in each run."""
    found = list(rows)
    random.Random(0).shuffle(found)
    return found


def covering(rows: list[Row], before: Iterable[Row] = ()) -> list[Row]:
    """Few rows that have every pair which those ``before`` don't have: the best ones first."""
    new = [pairs(row) for row in rows]
    few: list[Row] = []
    _cover({pair for row in before for pair in pairs(row)}, new)
    for least in range(max(map(len, new), default=0), 0, -1):
        for row, its in zip(rows, new, strict=True):
            if len(its) >= least:
                few.append(row)
                _cover(set(its), new)
    return few


def with_new_pairs(rows: Iterable[Row]) -> list[Row]:
    """The rows with a pair that none before them has."""
    covered: set[object] = set()
    found = []
    for row in rows:
        if pairs(row) - covered:
            found.append(row)
            covered |= pairs(row)
    return found


def _cover(covered: set[object], new: list[set[object]]) -> None:
    for its in new:
        its -= covered


def pairs(row: tuple[object, ...]) -> set[object]:
    return {*itertools.combinations(enumerate(row), 2)}
