"""``enumerate`` of what comes out of a pass that is gone on with in its middle."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torchbus.plugin import Context

from torchbus_checkpoint.loop.counters import Counters, place
from torchbus_checkpoint.loop.frames import is_users, user_frames


class Numbering:
    """In the user's modules, until the loop has arrived, ``enumerate`` looks whether it does so while the next item is fetched:
    then the item gets the number that follows the last one of the interrupted run, which ``heads`` has by place. Where the frame
    that enumerates is the ``reader`` of the loader itself, it is counted from ``taken``, the number of batches that are behind.
    """

    def __init__(self, session: Context, heads: Counters, reader: str, on_the_way: Callable[[], bool]) -> None:
        self._session = session
        self._on_the_way = on_the_way
        self._reader = reader
        self._last: dict[str, list[int]] = {}
        for key, number in heads.items():
            self._last.setdefault(key.rsplit(":", 1)[0], []).append(number)
        self.taken = 0
        self._modules = [module for module in _users_modules() if "enumerate" not in module]
        for module in self._modules:
            module["enumerate"] = self._enumerate

    def close(self) -> None:
        """The user's modules find Python's own ``enumerate`` again."""
        for module in self._modules:
            module.pop("enumerate", None)
        self._modules = []

    def _enumerate(self, iterable: Iterable[Any], start: int = 0) -> Iterator[tuple[int, Any]]:
        return self._numbered(iter(iterable), start) if self._modules else builtins.enumerate(iterable, start)

    def _numbered(self, items: Iterator[Any], number: int) -> Iterator[tuple[int, Any]]:
        while True:
            before = self._on_the_way()
            try:
                item = next(items)
            except StopIteration:
                return
            if before and not self._on_the_way():
                number = self._next(number)
            yield number, item
            number += 1

    def _next(self, start: int) -> int:
        frames = user_frames(self._session.frame)
        here = place(frames, len(frames) - 1) if frames else self._reader
        numbers = self._last.get(here, [])
        return start + self.taken if here == self._reader or len(numbers) != 1 else numbers[0] + 1


def _users_modules() -> list[dict[str, Any]]:
    """The variables of all modules of the user's that are imported."""
    modules = [module for name, module in list(sys.modules.items()) if is_users(name, getattr(module, "__file__", None))]
    return [vars(module) for module in modules]
