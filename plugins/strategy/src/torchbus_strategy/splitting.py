"""Splits items into contiguous shares, for inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Subset
from torchbus.plugin import DataPlace, UsageError, an

Rows = range | list[int]


@dataclass(frozen=True)
class Split:
    """The division of items into consecutive shares.

    If the items can't be divided evenly, the first parts have one more. With ``pads``, the others
    repeat the last item of all, so that all parts have the same number.
    """

    total: int
    place: DataPlace
    pads: bool

    @property
    def rows(self) -> Rows:
        """The numbers of this part's items."""
        begin, end = (self._begin(self.place.part + more) for more in (0, 1))
        missing = self._begin(1) - (end - begin) if self.pads and self.total else 0
        return [*range(begin, end), *[self.total - 1] * missing] if missing else range(begin, end)

    @property
    def own(self) -> int:
        """The number of this part's items, without those that it repeats."""
        return self._begin(self.place.part + 1) - self._begin(self.place.part)

    def _begin(self, part: int) -> int:
        each, more = divmod(self.total, self.place.parts)
        return part * each + min(part, more)


def length(items: Any) -> int:
    """Return how many items there are. Raises UsageError if that is not clear."""
    if not isinstance(items, Mapping):
        return len(_checked(items))
    lengths = {name: length(value) for name, value in items.items()} or {"": 0}
    if len(set(lengths.values())) != 1:
        raise UsageError(
            f"s.split_between_processes: the values of the dict have different lengths: {lengths}."
            " Pass the same number of items under each name"
        )
    return next(iter(lengths.values()))


def take(items: Any, rows: Rows) -> Any:
    """Return the items of these numbers, as an object of the same kind; a Subset of a data set."""
    if isinstance(items, Mapping):
        return {name: take(value, rows) for name, value in items.items()}
    if hasattr(items, "select") and not isinstance(items, Tensor):  # of the library datasets
        return items.select(rows)
    if isinstance(items, Dataset):
        return Subset(items, cast("Sequence[int]", rows))
    if isinstance(rows, range):
        return items[rows.start : rows.stop]
    if isinstance(items, list | tuple | range):
        taken = [items[row] for row in rows]
        return tuple(taken) if isinstance(items, tuple) else taken
    return items[rows]


def _checked(items: Any) -> Sized:
    has_rows = hasattr(items, "__len__") and hasattr(items, "__getitem__")
    is_one = isinstance(items, str | bytes | IterableDataset) or getattr(items, "ndim", 1) == 0
    if is_one or not has_rows:
        raise UsageError(
            f"s.split_between_processes: {an(type(items).__name__)} has no items to divide: pass a"
            " list, a tuple, a range, a tensor or array with rows, a map-style data set, or a dict"
            " of these"
        )
    return cast(Sized, items)
