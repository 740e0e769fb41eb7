"""Each module of a stage says at which place of the pipeline its values are, copies of it too."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from torch.nn import Module

MARK = "torchbus_pipeline_mark"


class Mark:
    """``number``: of this mark, in the order in which marks were made and copied.

    All ranks copy the same models in the same order. So they can tell by the numbers which copy is
    which.
    """

    def __init__(self, place: int, numbers: Iterator[int]) -> None:
        self.place, self._numbers = place, numbers
        self.number = next(numbers)

    def __deepcopy__(self, memo: dict[int, Any]) -> Mark:
        return Mark(self.place, self._numbers)


class Marks:
    """Marks modules, with numbers of one row."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def put(self, module: Module, place: int) -> None:
        vars(module)[MARK] = Mark(place, self._numbers)


def mark_of(module: Module) -> Mark | None:
    """The mark of a module, None if every rank has its values."""
    found: Mark | None = vars(module).get(MARK)
    return found


def unmark(module: Module) -> None:
    vars(module).pop(MARK, None)


def first_mark(model: Module) -> int | None:
    """The smallest number of a mark in a model, None if it has no mark."""
    found = [mark.number for module in model.modules() if (mark := mark_of(module))]
    return min(found, default=None)
