"""Prints text in aligned columns."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from itertools import zip_longest

GAP = "  "
NARROWEST = 16


def table(rows: Sequence[Sequence[str]]) -> str:
    """Align rows in columns that fit the terminal, or 100 columns without a terminal.

    The first column names the row and never wraps. Of the others, the widest wrap first.
    """
    widths = _fitting([max(map(len, column)) for column in zip(*rows, strict=True)])
    return "\n".join(line for row in rows for line in _lines(row, widths))


def _fitting(widths: list[int]) -> list[int]:
    room = max(60, min(shutil.get_terminal_size((100, 24)).columns, 120))
    while sum(widths) + len(GAP) * (len(widths) - 1) > room and max(widths[1:]) > NARROWEST:
        widths[widths.index(max(widths[1:]), 1)] -= 1
    return widths


def _lines(row: Sequence[str], widths: list[int]) -> list[str]:
    cells = [
        textwrap.wrap(cell, width, break_on_hyphens=False)
        for cell, width in zip(row, widths, strict=True)
    ]
    lines = zip_longest(*cells, fillvalue="")
    return [
        GAP.join(part.ljust(width) for part, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
