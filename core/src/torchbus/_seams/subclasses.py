"""Subclasses of DataLoader that bring an ``__iter__`` of their own, those defined later too.

One that makes torch's iterator by ``_get_iterator``, as DataLoader itself does (torchdata's StatefulDataLoader), is heard as DataLoader is.
Others mostly come to ``DataLoader.__iter__`` in the end; where one hands out a batch and has not, that is told.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader

from torchbus._seams.ears import Ears

Make = Callable[[Callable[..., Iterator[Any]]], Callable[..., Iterator[Any]]]


class Heard:
    """Which passes a seam has heard."""

    def __init__(self) -> None:
        self.passes = 0
        self._loaders: weakref.WeakSet[DataLoader[Any]] = weakref.WeakSet()

    def note(self, loader: DataLoader[Any]) -> None:
        """A pass over it is heard."""
        self.passes += 1
        self._loaders.add(loader)

    def since(self, passes: int, loader: DataLoader[Any]) -> bool:
        """Whether this loader was ever heard (it may have made its iterator long ago), or another one since then (it may be made of others)."""
        return self.passes > passes or loader in self._loaders


def install(ears: Ears, make_iter: Make, heard: Heard) -> Callable[[], None]:
    """Hear them; returns what undoes it."""
    undos: list[Callable[[], None]] = []

    def hear(kind: type[DataLoader[Any]]) -> None:
        if "__iter__" in vars(kind):
            make = make_iter if _is_like_torchs(vars(kind)["__iter__"]) else _make_watched(ears, heard)
            undos.append(ears.replace(kind, "__iter__", make))

    for kind in _subclasses(DataLoader):
        hear(kind)
    undos.append(_hear_later_ones(hear))

    def undo() -> None:
        while undos:
            undos.pop()()

    return undo


def begin_anew(loader: DataLoader[Any]) -> None:
    """A StatefulDataLoader that was asked for its state before its first pass has made an iterator, which no seam has heard: another one is
    made, with that state."""
    if getattr(loader, "_initial_iter_for_state_dict", False) is True:
        loader.load_state_dict(loader.state_dict())  # type: ignore[attr-defined]


def _make_watched(ears: Ears, heard: Heard) -> Make:
    def make(original: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        def __iter__(self: DataLoader[Any]) -> Iterator[Any]:
            before = heard.passes
            iterator = original(self)
            if inspect.isgenerator(iterator):
                return _watched(self, iterator, before)
            if not heard.since(before, self):
                ears.hook.loader_bypassed(loader=self)
            return iterator

        return __iter__

    def _watched(loader: DataLoader[Any], inner: Iterator[Any], before: int) -> Iterator[Any]:
        for batch in inner:
            if not heard.since(before, loader):
                ears.hook.loader_bypassed(loader=loader)
            yield batch
            break
        yield from inner

    return make


def _is_like_torchs(function: Any) -> bool:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code is not None and "_get_iterator" in code.co_names and "super" not in code.co_names


def _subclasses(kind: type[Any]) -> list[type[Any]]:
    return [one for child in kind.__subclasses__() for one in [child, *_subclasses(child)]]


def _hear_later_ones(hear: Callable[[type[Any]], None]) -> Callable[[], None]:
    def __init_subclass__(cls: type[Any], /, **arguments: Any) -> None:
        super(DataLoader, cls).__init_subclass__(**arguments)
        hear(cls)

    ours = classmethod(__init_subclass__)
    own = vars(DataLoader).get("__init_subclass__")
    DataLoader.__init_subclass__ = ours  # type: ignore[assignment, method-assign]

    def undo() -> None:
        if vars(DataLoader).get("__init_subclass__") is not ours:
            return
        if own is None:
            del DataLoader.__init_subclass__
        else:
            DataLoader.__init_subclass__ = own  # type: ignore[method-assign]

    return undo
