"""``enumerate`` over a pass that a replay continues in its middle."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from torchbus.plugin import Context

from torchbus_checkpoint.loop.counters import Counters, place
from torchbus_checkpoint.loop.frames import is_users, user_frames

Item = TypeVar("Item")


class Numbering:
    """Replaces ``enumerate`` in the user's modules until the replay ends.

    If the replay ends while an item is fetched, this item gets the number after the last one of the
    interrupted run. ``heads`` has these numbers by place. If the frame is the ``reader`` of the
    loader itself, the number is counted from ``taken``, the number of batches before.
    """

    def __init__(
        self, session: Context, heads: Counters, reader: str, on_the_way: Callable[[], bool]
    ) -> None:
        self._session = session
        self._on_the_way = on_the_way
        self._reader = reader
        self._last: dict[str, list[int]] = {}
        for key, number in heads.items():
            self._last.setdefault(key.rsplit(":", 1)[0], []).append(int(number))
        self.taken = 0
        self._modules = [module for module in _users_modules() if "enumerate" not in module]
        for module in self._modules:
            module["enumerate"] = self._enumerate

    def close(self) -> None:
        """Give the user's modules Python's own ``enumerate`` again."""
        for module in self._modules:
            module.pop("enumerate", None)
        self._modules = []

    def _enumerate(self, iterable: Iterable[Item], start: int = 0) -> Iterator[tuple[int, Item]]:
        return (
            self._numbered(iter(iterable), start)
            if self._modules
            else builtins.enumerate(iterable, start)
        )

    def _numbered(self, items: Iterator[Item], number: int) -> Iterator[tuple[int, Item]]:
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
    """Return the variables of all imported modules of the user."""
    modules = [
        module
        for name, module in list(sys.modules.items())
        if is_users(name, getattr(module, "__file__", None))
    ]
    return [vars(module) for module in modules]
