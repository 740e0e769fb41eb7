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
    covered = {pair for row in before for pair in pairs(row)}
    most = max((len(pairs(row)) for row in rows), default=0)
    return [row for least in range(most, 0, -1) for row in _adding(least, rows, covered)]


def with_new_pairs(rows: Iterable[Row]) -> list[Row]:
    """The rows with a pair that none before them has."""
    return list(_adding(1, rows, set()))


def _adding(least: int, rows: Iterable[Row], covered: set[object]) -> Iterable[Row]:
    for row in rows:
        if len(pairs(row) - covered) >= least:
            covered |= pairs(row)
            yield row


def pairs(row: tuple[object, ...]) -> set[object]:
    return {*itertools.combinations(enumerate(row), 2)}
