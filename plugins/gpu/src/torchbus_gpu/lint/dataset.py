"""Find datasets of millions of Python objects that several workers read."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import islice

from torch.utils.data import DataLoader, Dataset
from torchbus.plugin import Context, hookimpl

from torchbus_gpu._compat import current_frame
from torchbus_gpu.users_code import Line, line_of, outwards

MANY_OBJECTS = 1_000_000
FEWEST_WORKERS = 2
LOOKED_AT = 100
CONTAINERS = (list, tuple, dict, set)
Container = list[object] | tuple[object, ...] | dict[object, object] | set[object]


class ObjectsInDataset:
    """Warns of such a dataset, because each worker copies it.

    Reading an object writes its reference count. So a forked worker copies the memory page of each
    object that it reads (https://github.com/pytorch/pytorch/issues/13246).
    """

    def __init__(self, session: Context) -> None:
        self._session = session
        self._seen: set[int] = set()

    @hookimpl
    def loader_opened(self, loader: DataLoader[object]) -> None:
        if (
            loader.num_workers < FEWEST_WORKERS
            or id(loader) in self._seen
            or not self._session.captures(loader)
        ):
            return
        self._seen.add(id(loader))
        count, where = max(holdings(loader.dataset), default=(0, ""))
        if count >= MANY_OBJECTS:
            line = line_of(outwards(current_frame())) or Line("torchbus-gpu", 1)
            text = (
                f"{where} holds about {count:,} Python objects, and each of the"
                f" {loader.num_workers} workers of this loader gets a copy of them as it reads:"
                " hold numpy arrays, tensors or an Arrow table instead (strings as one array of"
                " bytes with offsets)"
            )
            warnings.warn_explicit(text, UserWarning, line.file, line.number)


def holdings(dataset: object) -> Iterator[tuple[int, str]]:
    """Yield the number of objects in each container of a dataset, and the container's name.

    Containers are attributes of the dataset, or of datasets in it.
    """
    for attribute, value in getattr(dataset, "__dict__", {}).items():
        if isinstance(value, CONTAINERS):
            yield objects_in(value), f"{type(dataset).__name__}.{attribute}"
        inner = value if isinstance(value, list | tuple) else [value]
        for part in islice(inner, LOOKED_AT):
            if isinstance(part, Dataset) and part is not dataset:
                yield from holdings(part)


def objects_in(container: Container) -> int:
    """Estimate how many objects a container holds, from its first hundred."""
    values = container.values() if isinstance(container, dict) else container
    first = list(islice(values, LOOKED_AT))
    inside = [1 + (objects_in(value) if isinstance(value, CONTAINERS) else 0) for value in first]
    return round(len(container) * sum(inside) / len(inside)) if inside else 0
