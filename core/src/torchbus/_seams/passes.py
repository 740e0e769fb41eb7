"""One pass over a loader: what stands in for the loader's own attributes meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Protocol, runtime_checkable

from torch.utils.data import DataLoader

from torchbus._batches.anew import DividedAnew


class Pass:
    """One pass over a loader, and the attributes to replace while its iterator is made."""

    def __init__(self, **replacements: object) -> None:
        self.replacements = replacements

    @cached_property
    def divided_anew(self) -> DividedAnew | None:
        """The order that is to be drawn from, if it is divided anew between two steps."""
        order = self.replacements.get("batch_sampler", self.replacements.get("sampler"))
        return order if isinstance(order, DividedAnew) else None


@runtime_checkable
class Skipping(Protocol):
    """An iterator of an order that skips any number of batches at once."""

    def skip(self, count: int) -> None:
        """Skip batches. Raises StopIteration if there are not as many."""


@contextmanager
def replaced(loader: DataLoader[object], attributes: dict[str, object]) -> Iterator[None]:
    """Give the loader other attributes inside the block."""
    own = {name: loader.__dict__[name] for name in attributes}
    loader.__dict__.update(attributes)
    try:
        yield
    finally:
        loader.__dict__.update(own)
