"""A table that a plugin gives to loggers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Names of columns, and rows of texts and numbers.

    ``plot``: two columns of numbers, x and y, if a reader wants a curve and not the numbers.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str | float, ...], ...]
    plot: tuple[str, str] | None = None
