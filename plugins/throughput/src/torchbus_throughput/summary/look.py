"""What one call of a model shows: shapes, and operations of the forward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.utils.hooks import RemovableHandle
from torchbus.tree import leaves

from torchbus_throughput import _compat

SHAPES_AT_MOST = 3


@dataclass
class Call:
    """The first call of a module, and the operations of all its calls inside the model's first.

    ``flops`` is None if they were not counted.
    """

    gets: str
    returns: str
    flops: int | None = 0


class Look:
    """Hooks on a model and its parts down to a depth, for the model's first call.

    ``graphs_before``: how many graphs torch.compile had made before the session.

    Inside of compiled modules there are no hooks, and no operations are counted: both would change
    what is compiled.
    """

    def __init__(self, model: Module, depth: int, graphs_before: int) -> None:
        self.model = model
        self._graphs_before = graphs_before
        self.rows = list(parts(model, depth))
        self.calls: dict[int, Call] = {}
        self._counts = not any(map(_compat.is_compiled, model.modules()))
        self._counter: _compat.CountedOps | None = None
        self._watches = False
        self._began: dict[int, int] = {}
        self._handles: list[RemovableHandle] = []
        for module in {id(row.module): row.module for row in self.rows if row.is_open}.values():
            self._handles += [
                module.register_forward_pre_hook(self._before, with_kwargs=True),
                module.register_forward_hook(self._after, with_kwargs=True, always_call=True),
            ]

    @property
    def was_called(self) -> bool:
        return id(self.model) in self.calls

    def begin(self, module: Module) -> None:
        """A module is about to run."""
        if module is self.model and not self.was_called and not self._watches:
            self._watches = True
            if self._counts and _compat.compiled_graphs() == self._graphs_before:
                self._counter = _compat.CountedOps()
                self._counter.begin()
        if self._counter is not None:
            self._began[id(module)] = self._counter.total

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _before(self, module: Module, args: Any, kwargs: Any) -> None:
        self.begin(module)

    def _after(self, module: Module, args: Any, kwargs: Any, output: Any) -> None:
        if not self._watches:
            return None
        if output is None and module is self.model:  # it has failed: the next call may not
            self.calls.clear()
            return self._finish()
        call = self.calls.setdefault(id(module), Call(shapes((args, kwargs)), shapes(output)))
        if self._counter is None:
            call.flops = None
        elif call.flops is not None:
            call.flops += self._counter.total - self._began.get(id(module), 0)
        if module is self.model:
            self._finish()

    def _finish(self) -> None:
        self._watches = False
        if self._counter is not None:
            counter, self._counter = self._counter, None
            counter.end()


@dataclass(frozen=True)
class Row:
    """A module of the table. ``is_open``: hooks may watch it. ``same_as``: it stands there too."""

    path: str
    level: int
    module: Module
    is_open: bool
    same_as: str | None = None


def parts(model: Module, depth: int) -> Iterator[Row]:
    """Return a model and its parts down to a depth, in their order."""
    known: dict[int, str] = {}

    def walk(module: Module, path: str, level: int, is_open: bool) -> Iterator[Row]:
        same_as = known.get(id(module))
        known.setdefault(id(module), path)
        own = _compat.compiled_from(module)
        # the wrapper of torch.compile is called as it is, and what it wraps is compiled
        calls_itself = own is module and _compat.is_compiled(module)
        yield Row(path, level, module, is_open and not calls_itself, same_as)
        if level < depth and same_as is None:
            inside = is_open and not _compat.is_compiled(module)
            for name, child in _children(own):
                yield from walk(child, f"{path}.{name}".lstrip("."), level + 1, inside)

    return walk(model, "", 0, True)


def _children(module: Module) -> list[tuple[str, Module]]:
    """Return direct parts, also one that stands under several names."""
    named = module.named_modules(remove_duplicate=False)
    return [(name, part) for name, part in named if name and "." not in name]


def shapes(value: object) -> str:
    """Return the shapes of the tensors in a nesting of values."""
    found = [str(list(leaf.shape)) for leaf in leaves(value) if isinstance(leaf, Tensor)]
    more = ["..."] if len(found) > SHAPES_AT_MOST else []
    return ", ".join([*found[:SHAPES_AT_MOST], *more]) or "-"
