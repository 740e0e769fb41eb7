"""The loop's own variables: ``best``, ``history``, ``running_loss``, ``self.num_steps``.

A checkpoint has numbers, strings, small tensors, random generators, and lists, tuples, sets and
dicts of them. It takes them from the frames of the user's code, from their modules, and from
objects of the user's own classes. It takes only those that have changed since the first pass over
a loader began: a constant that somebody edits between two runs keeps its new value.
"""

from __future__ import annotations

from types import FrameType

from torch import Tensor
from torchbus.plugin import UsageError

from torchbus_checkpoint.loop import values
from torchbus_checkpoint.loop.scopes import Scope, scopes
from torchbus_checkpoint.state.plain import copied
from torchbus_strategy.batches import collect

Saved = dict[str, dict[str, object]]


class Variables:
    """Remembers the first value of each variable."""

    def __init__(self) -> None:
        self._first: Saved = {}

    def look(self, frames: list[FrameType]) -> None:
        """Called when a pass over a loader or an epoch begins."""
        for scope in scopes(frames):
            if scope.place not in self._first:
                self._first[scope.place] = copied(_saveable(scope))

    def changed(self, frames: list[FrameType], fetched: list[Tensor]) -> Saved:
        """Return the variables that differ from their first value, by place.

        Those that hold a batch in ``fetched`` are left out: a wrapper fetches it again.
        """
        ahead = set(map(id, fetched))
        found = {
            scope.place: {
                name: value
                for name, value in self._changes(scope).items()
                if not (ahead and _holds(scope.values[name], ahead))
            }
            for scope in scopes(frames)
        }
        return {place: changes for place, changes in found.items() if changes}

    def put_back(self, frames: list[FrameType], saved: Saved) -> None:
        """Give the variables their saved values.

        One that has changed in this run, and had not in the saved one, gets its first value.
        """
        for scope in scopes(frames):
            first = self._first.get(scope.place, {})
            again = {name: first[name] for name in self._changes(scope) if name in first}
            wanted = again | saved.get(scope.place, {})
            scope.bind(
                {
                    name: values.restored(scope.values.get(name), value)
                    for name, value in wanted.items()
                }
            )

    @staticmethod
    def fill(frames: list[FrameType], saved: Saved) -> None:
        """Give saved values to the variables that do not exist yet, or are None.

        A pass that is left out would have assigned them, and the loop may show them.
        """
        for scope in scopes(frames):
            missing = saved.get(scope.place, {}).items()
            scope.bind(
                {
                    name: values.restored(None, value)
                    for name, value in missing
                    if scope.values.get(name) is None
                }
            )

    def _changes(self, scope: Scope) -> dict[str, object]:
        first = self._first.get(scope.place, {})
        return {
            name: value
            for name, value in _saveable(scope).items()
            if name not in first or not values.same(value, first[name])
        }


def _saveable(scope: Scope) -> dict[str, object]:
    """Return the values that can be saved.

    Of the variables that a loop is about to assign, only numbers count.
    """
    found = {}
    for name, value in list(scope.values.items()):
        if not name.startswith(scope.hidden) and (name not in scope.left_out or type(value) is int):
            try:
                found[name] = values.to_save(value)
            except UsageError:
                continue
    return found


def _holds(value: object, tensors: set[int]) -> bool:
    found: list[Tensor] = []
    collect(value, found)
    return any(id(tensor) in tensors for tensor in found)
