"""Who initialised CUDA before a fork, as far as the code that was run tells."""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Iterator

USES = re.compile(r"\.cuda\(|[\"']cuda|torch\.cuda\.(?!is_|device_count)")


def first_use() -> str:
    """The first line that uses CUDA, quoted with its place; "" where none is found."""
    for place, line in _lines_run():
        if USES.search(line.partition("#")[0]):
            return f"; the first line that uses it is {place}: {line.strip()}"
    return ""


def _lines_run() -> Iterator[tuple[str, str]]:
    """Lines of the cells of a notebook, or else of the main script."""
    main = vars(sys.modules["__main__"])
    cells = main.get("In") if "get_ipython" in main else None
    if isinstance(cells, list):
        for number, cell in enumerate(cells):
            yield from ((f"cell {number}, line {index}", line) for index, line in enumerate(str(cell).splitlines(), start=1))
        return
    file = main.get("__file__") or ""
    yield from ((f"line {index}", line) for index, line in enumerate(linecache.getlines(file), start=1))
