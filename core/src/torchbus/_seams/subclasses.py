"""Subclasses of DataLoader that have an ``__iter__`` of their own, also those defined later.

Some make torch's iterator by ``_get_iterator``, as DataLoader itself does (torchdata's
StatefulDataLoader). They are heard as DataLoader is. Most others call ``DataLoader.__iter__`` in
the end. If one hands out a batch and has not called it, ``loader_bypassed`` is sent.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator
from typing import Protocol, cast

from torch.utils.data import DataLoader

from torchbus._compat import loaders
from torchbus._seams.ears import Ears

Make = Callable[[Callable[..., Iterator[object]]], Callable[..., Iterator[object]]]
Kind = type[DataLoader[object]]


class Heard:
    """Remembers which passes a seam has heard."""

    def __init__(self) -> None:
        self.passes = 0
        self._loaders: weakref.WeakSet[DataLoader[object]] = weakref.WeakSet()

    def note(self, loader: DataLoader[object]) -> None:
        """The seam has heard a pass over this loader."""
        self.passes += 1
        self._loaders.add(loader)

    def since(self, passes: int, loader: DataLoader[object]) -> bool:
        """Whether the seam ever heard this loader, or another one since then.

        The loader may have made its iterator long ago, or be made of other loaders.
        """
        return self.passes > passes or loader in self._loaders


def replace_own_iter(ears: Ears, make_iter: Make, heard: Heard) -> Callable[[], None]:
    """Hear these subclasses. Return the function that undoes it."""
    undos: list[Callable[[], None]] = []

    def hear(kind: type[DataLoader[object]]) -> None:
        if "__iter__" in vars(kind):
            make = (
                make_iter if _is_like_torchs(vars(kind)["__iter__"]) else _make_watched(ears, heard)
            )
            undos.append(ears.replace(kind, "__iter__", make))

    for kind in _subclasses(DataLoader):
        hear(kind)
    undos.append(_hear_later_ones(hear))

    def undo() -> None:
        while undos:
            undos.pop()()

    return undo


class Stateful(Protocol):
    """A loader that has a state."""

    def state_dict(self) -> dict[str, object]: ...
    def load_state_dict(self, state: dict[str, object]) -> None: ...


def begin_anew(loader: DataLoader[object]) -> None:
    """Let a StatefulDataLoader make its iterator again, from the same state.

    If it was asked for its state before its first pass, it has made an iterator that no seam has
    heard.
    """
    if loaders.has_early_iterator(loader):
        stateful = cast(Stateful, loader)
        stateful.load_state_dict(stateful.state_dict())


def _make_watched(ears: Ears, heard: Heard) -> Make:
    def make(original: Callable[..., Iterator[object]]) -> Callable[..., Iterator[object]]:
        def __iter__(self: DataLoader[object]) -> Iterator[object]:
            before = heard.passes
            iterator = original(self)
            if inspect.isgenerator(iterator):
                return _watched(self, iterator, before)
            if not heard.since(before, self):
                ears.hook.loader_bypassed(loader=self)
            return iterator

        return __iter__

    def _watched(
        loader: DataLoader[object], inner: Iterator[object], before: int
    ) -> Iterator[object]:
        for batch in inner:
            if not heard.since(before, loader):
                ears.hook.loader_bypassed(loader=loader)
            yield batch
            break
        yield from inner

    return make


def _is_like_torchs(function: Callable[..., object]) -> bool:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return (
        code is not None and loaders.GET_ITERATOR in code.co_names and "super" not in code.co_names
    )


def _subclasses(kind: Kind) -> list[Kind]:
    return [one for child in kind.__subclasses__() for one in [child, *_subclasses(child)]]


def _hear_later_ones(hear: Callable[[Kind], None]) -> Callable[[], None]:
    def __init_subclass__(cls: Kind, /, **arguments: object) -> None:
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
