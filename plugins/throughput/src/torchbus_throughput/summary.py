"""A table of the models, printed once after the first step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle
from torchbus import objects
from torchbus.plugin import Context, UsageError, expect, hookimpl, users_frame, warn
from torchbus.tree import leaves

from torchbus_cli.parser import table
from torchbus_throughput import _compat
from torchbus_throughput._compat import compiled_graphs


class ModelSummary:
    """Prints a table of each model on rank 0, when the first optimizer step has run.

    It has modules with the shapes of what they get and return, parameters, and the floating-point
    operations of the forward. Hooks watch each model's first call, and are removed after the step.

    Args:
        model_summary: True for a model and its parts, or how many levels of parts.
    """

    owns = ("model summary",)

    def __init__(self, *, model_summary: bool | int = True) -> None:
        expect("model_summary", model_summary, (bool, int), "True, False, or a number of levels")
        if model_summary < 0:
            raise UsageError(f"model_summary={model_summary}: it must be 0 or more levels of parts")
        self._depth = int(model_summary)

    @hookimpl
    def session_start(self, session: Context) -> None:
        if self._depth and session.is_main:
            session.bus.register(FirstStep(session, self._depth), "model_summary.first_step")

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]] | None:
        how = f"rank 0 prints each model, {self._depth} level(s) deep, after the first step"
        return {"summary": [how]} if self._depth else None


class FirstStep:
    """Looks at the models until the first real step is over."""

    def __init__(self, session: Context, depth: int) -> None:
        self._session = session
        self._depth = depth
        self._graphs_before = compiled_graphs()
        self._looks: list[FirstCallHooks] = []
        session.on_close.callback(self._end)

    @hookimpl
    def model_found(self, model: Module, calling: bool) -> None:
        if objects.is_internal(model) or not self._session.captures(model):
            return
        look = FirstCallHooks(model, self._depth, self._graphs_before)
        self._looks.append(look)
        if calling:
            look.begin(model)

    @hookimpl
    def after_optimizer_step(self, optimizer: Optimizer) -> None:
        looks, frame = self._looks, users_frame()[0]
        self._end()
        self._session.bus.unregister(self)
        try:
            named = [
                (objects.name_of(one.model, frame) or type(one.model).__name__, one)
                for one in looks
            ]
            print(text(named, self._numel))
        except Exception as error:
            warn(f"model_summary: no table could be made: {error!r}. Training continues")

    def _numel(self, parameter: Tensor) -> int:
        return objects.shape_of(parameter, self._session.bus).numel()

    def _end(self) -> None:
        for look in self._looks:
            look.close()
        self._looks = []


HEAD = ["module", "class", "in", "out", "parameters", "trainable", "forward FLOPs"]


def text(looks: Sequence[tuple[str, FirstCallHooks]], numel: Callable[[Tensor], int]) -> str:
    """Return a table of models, each with its name. A parameter that is shared counts once.

    ``numel``: how many elements a whole parameter has, of which a rank may keep only some.
    """
    rows = [_cells(name, look, row, numel) for name, look in looks for row in look.rows]
    return table([HEAD, *rows])


def _cells(
    name: str, look: FirstCallHooks, row: ModuleRow, numel: Callable[[Tensor], int]
) -> list[str]:
    label = "  " * row.level + (row.path.rpartition(".")[2] if row.level else name)
    if row.same_as is not None:
        return [label, f"the same as {row.same_as}", "", "", "", "", ""]
    call = look.calls.get(id(row.module))
    parameters = list(row.module.parameters())
    trainable = [one for one in parameters if one.requires_grad]
    return [
        label,
        _class(row),
        "-" if call is None else call.gets,
        "-" if call is None else call.returns,
        f"{sum(map(numel, parameters)):,}",
        f"{sum(map(numel, trainable)):,}",
        "-" if call is None or call.flops is None else f"{call.flops:,}",
    ]


def _class(row: ModuleRow) -> str:
    name = type(_compat.compiled_from(row.module)).__name__
    return f"{name}, compiled" if _compat.is_compiled(row.module) else name


SHAPES_AT_MOST = 3


@dataclass
class ModuleCall:
    """The first call of a module, and the operations of all its calls inside the model's first.

    ``flops`` is None if they were not counted.
    """

    gets: str
    returns: str
    flops: int | None = 0


class FirstCallHooks:
    """Hooks on a model and its parts down to a depth, for the model's first call.

    ``graphs_before``: how many graphs torch.compile had made before the session.

    Inside of compiled modules there are no hooks, and no operations are counted: both would change
    what is compiled.
    """

    def __init__(self, model: Module, depth: int, graphs_before: int) -> None:
        self.model = model
        self._graphs_before = graphs_before
        self.rows = list(parts(model, depth))
        self.calls: dict[int, ModuleCall] = {}
        self._counts = not any(map(_compat.is_compiled, model.modules()))
        self._counter: _compat.CountedOps | None = None
        self._watches = False
        self._began: dict[int, int] = {}
        self._handles: list[RemovableHandle] = []
        for module in {id(row.module): row.module for row in self.rows if row.is_open}.values():
            self._handles += [
                module.register_forward_pre_hook(self.begin, with_kwargs=True),
                module.register_forward_hook(self._after, with_kwargs=True, always_call=True),
            ]

    def begin(self, module: Module, *_: object) -> None:
        """A module is about to run."""
        if module is self.model and id(module) not in self.calls and not self._watches:
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

    def _after(self, module: Module, args: Any, kwargs: Any, output: Any) -> None:
        if not self._watches:
            return None
        if output is None and module is self.model:  # this call failed: the next one may not
            self.calls.clear()
            return self._finish()
        call = self.calls.setdefault(id(module), ModuleCall(shapes((args, kwargs)), shapes(output)))
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
class ModuleRow:
    """A module in the table. ``is_open``: hooks may watch it. ``same_as``: its path above."""

    path: str
    level: int
    module: Module
    is_open: bool
    same_as: str | None = None


def parts(model: Module, depth: int) -> Iterator[ModuleRow]:
    """Return a model and its parts down to a depth, in their order."""
    known: dict[int, str] = {}

    def walk(module: Module, path: str, level: int, is_open: bool) -> Iterator[ModuleRow]:
        same_as = known.get(id(module))
        known.setdefault(id(module), path)
        mine = _compat.compiled_from(module)
        # the wrapper of torch.compile is called as it is, and what it wraps is compiled
        calls_itself = mine is module and _compat.is_compiled(module)
        yield ModuleRow(path, level, module, is_open and not calls_itself, same_as)
        if level < depth and same_as is None:
            inside = is_open and not _compat.is_compiled(module)
            for name, child in _children(mine):
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
