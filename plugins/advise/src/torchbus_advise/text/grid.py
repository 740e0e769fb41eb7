"""Columns of numbers, aligned to the right, the first to the left; and paragraphs."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

WIDTH = 100


def grid(lines: Sequence[Sequence[str]]) -> str:
    """A line of one word is a heading."""
    rows = [line for line in lines if len(line) > 1]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(_line(line, widths) for line in lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = cells
    numbers = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=False)]
    return "  ".join([first.ljust(widths[0]), *numbers]).rstrip()


def wrapped(text: str) -> list[str]:
    """Lines of at most 100 columns; what was indented stays so."""
    return [part for line in text.split("\n") for part in _broken(line)]


def _broken(line: str) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()))
    further = indent or "  "
    return textwrap.wrap(
        line,
        WIDTH,
        initial_indent="",
        subsequent_indent=further,
        break_on_hyphens=False,
        break_long_words=False,
        drop_whitespace=True,
    ) or [""]
