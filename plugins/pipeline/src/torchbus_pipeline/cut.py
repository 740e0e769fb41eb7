"""One model, cut into stages."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import Module
from torchbus import objects
from torchbus.plugin import Unsupported, UsageError

from torchbus_pipeline import remote_parameters
from torchbus_pipeline._compat import as_plain_tensors


class Cut:
    """Consecutive layers. Each stage has some of them, and each place of the pipeline some stages.

    ``balance`` is the number of layers of each stage, and ``stage_of`` the stage of each layer.
    Stage ``s`` is at place ``s`` modulo the number of places. ``loss_kind`` is "mean" or "sum" if
    the loss is one over samples, "" if it is neither, and None before the first backward.
    ``measured`` is a text about the times of layers, if they were to be measured.
    """

    def __init__(
        self, model: Module, found: LayerRange, balance: Sequence[int], place: int, places: int
    ) -> None:
        self.model, self.name = weakref.ref(model), type(model).__name__
        self.found, self.balance, self.place, self.places = found, list(balance), place, places
        self.layers = list(found.holder)
        ends = list(accumulate(balance))
        self.stage_of = [
            next(stage for stage, end in enumerate(ends) if index < end)
            for index in range(len(self.layers))
        ]
        self.stages = len(self.balance)
        self.local_stages = [stage for stage in range(self.stages) if stage % places == place]
        self.measured = ""
        self.written: set[type] = set()
        self.forwards = 0
        self.loss_kind: str | None = None

    def layers_of(self, stage: int) -> list[tuple[int, Module]]:
        """Return the layers of a stage, with their numbers."""
        return [
            (index, layer)
            for index, (layer, owner) in enumerate(zip(self.layers, self.stage_of, strict=True))
            if owner == stage
        ]

    def place_of(self, stage: int) -> int:
        return stage % self.places

    def needs_gradients(self, stage: int) -> bool:
        """Whether some parameter of a stage is trained."""
        return any(
            parameter.requires_grad
            for _, layer in self.layers_of(stage)
            for parameter in layer.parameters()
        )

    # Dividing ------------------------------------------------------------------------------------

    def refuse_shared(self) -> None:
        """Raise UsageError if two stages, or a layer and a module outside, share a parameter."""
        names = self.found.names()
        first: dict[int, int] = {}
        for index, layer in enumerate(self.layers):
            for parameter in layer.parameters():
                other = first.setdefault(id(parameter), index)
                if self.stage_of[other] != self.stage_of[index]:
                    self._refuse_tied(names[other], names[index])
        inside = {id(module) for layer in self.layers for module in layer.modules()}
        model = self.model()
        assert model is not None
        for path, module in model.named_modules():
            for parameter in module.parameters(recurse=False):
                if id(module) not in inside and id(parameter) in first:
                    self._refuse_tied(path, names[first[id(parameter)]])

    def _refuse_tied(self, one: str, other: str) -> None:
        raise UsageError(
            f"strategy='pipeline': {one} and {other} of {self.name} share a parameter, and would be"
            " on different ranks: choose balance= so that one stage has both, name a list with"
            " blocks= that has neither, or use strategy='ddp'"
        )

    def divide(self, ranks: Sequence[int], numbers: Iterator[int]) -> None:
        """Mark each layer with its place, and free the values of layers of other places.

        ``numbers`` are those of the next marks.
        """
        for name, layer, stage in zip(self.found.names(), self.layers, self.stage_of, strict=True):
            place = self.place_of(stage)
            where = f"{name} of {self.name} is on rank {ranks[place]}"
            for module in layer.modules():
                vars(module)[MARK] = ModuleMark(place, numbers)
            if place != self.place:
                for parameter in layer.parameters():
                    if type(parameter) is nn.Parameter:
                        remote_parameters.empty(parameter, where)


FACTS = ("dtype", "device", "requires_grad", "is_cuda", "is_sparse", "is_nested")


class Between(torch.Tensor):
    """A placeholder for a layer's output, which only the next layer accepts."""

    torchbus_after: str

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        name = getattr(function, "__name__", "")
        owner = getattr(getattr(function, "__self__", None), "__name__", "")
        if name == "__hash__" or (name == "__get__" and owner in FACTS):
            with as_plain_tensors():
                return function(*args, **(kwargs or {}))
        found = [one for one in args if isinstance(one, Between)]
        after = found[0].torchbus_after if found else "a layer"
        raise Unsupported(
            f"{owner if name == '__get__' else name} of what {after} returns, before the last of"
            " the layers is called: strategy='pipeline' computes layers on other ranks, so what one"
            " returns can only go into the next one, and no connection may skip a layer; name"
            " another list with blocks=, or use strategy='ddp'"
        )


def after(layer: str, x: Tensor) -> Between:
    """Return the placeholder for a layer's output."""
    made = x.detach().as_subclass(Between)
    made.torchbus_after = layer
    return made


AUTO = "auto"


class LayerRange(NamedTuple):
    """Consecutive layers. ``path`` names their list in the model, and is "" for the model itself.

    ``holder`` is the nn.Sequential that calls the layers, or an nn.ModuleList whose layers the
    model calls.
    """

    path: str
    holder: nn.Sequential | nn.ModuleList

    def names(self) -> list[str]:
        """Return each layer's name in the model."""
        prefix = f"{self.path}." if self.path else ""
        return [f"{prefix}{name}" for name, _ in self.holder.named_children()]


def find(model: Module, blocks: str) -> LayerRange | None:
    """Return the layers of a model: an nn.Sequential itself, else its longest list of blocks.

    ``blocks`` is "auto", or the path of the list. Returns None if "auto" finds no list. Raises
    UsageError if ``blocks`` names something else.
    """
    if blocks != AUTO:
        return LayerRange(blocks, _named(model, blocks))
    if isinstance(model, nn.Sequential) and not _has_local_forward(model):
        return LayerRange("", model)
    lists = [
        LayerRange(path, module)
        for path, module in model.named_modules()
        if isinstance(module, nn.Sequential | nn.ModuleList) and _repeats(module)
    ]
    return max(lists, key=lambda one: len(one.holder), default=None)


def _has_local_forward(model: nn.Sequential) -> bool:
    """Whether a class of the script extends the forward of nn.Sequential."""
    kinds = type(model).__mro__
    return any("forward" in vars(kind) for kind in kinds[: kinds.index(nn.Sequential)])


def _repeats(module: nn.Sequential | nn.ModuleList) -> bool:
    """Whether a list has at least two modules, all of one class and with parameters."""
    kinds = {type(one) for one in module}
    return (
        len(module) > 1
        and len(kinds) == 1
        and all(any(True for _ in one.parameters()) for one in module)
    )


def _named(model: Module, blocks: str) -> nn.Sequential | nn.ModuleList:
    try:
        found = model.get_submodule(blocks)
    except AttributeError:
        found = None
    if not isinstance(found, nn.Sequential | nn.ModuleList):
        lists = [
            path or "''"
            for path, module in model.named_modules()
            if isinstance(module, nn.Sequential | nn.ModuleList)
        ]
        what = "nothing" if found is None else type(found).__name__
        raise UsageError(
            f"blocks={blocks!r}: {type(model).__name__} has {what} there, and no nn.ModuleList or"
            f" nn.Sequential; it has some at {', '.join(lists) or 'no place'}"
        )
    return found


MARK = "torchbus_pipeline_mark"


class ModuleMark:
    """A mark on a module, with the ``place`` that has its values.

    ``number`` is consecutive, in the order in which marks are made and copied. All ranks copy the
    same models in the same order, so the numbers identify the copies.
    """

    def __init__(self, place: int, numbers: Iterator[int]) -> None:
        self.place, self._numbers = place, numbers
        self.number = next(numbers)

    def __deepcopy__(self, memo: dict[int, Any]) -> ModuleMark:
        return ModuleMark(self.place, self._numbers)


def mark_of(module: Module) -> ModuleMark | None:
    """Return the mark of a module, or None if every rank has its values."""
    found: ModuleMark | None = vars(module).get(MARK)
    return found


def first_mark(model: Module) -> int | None:
    """Return the smallest number of the marks in a model, or None without marks."""
    found = [mark.number for module in model.modules() if (mark := mark_of(module))]
    return min(found, default=None)


def remove_marks() -> None:
    """Remove the marks from all modules: copies, and parts of models that have gone, included."""
    for module in objects.alive(Module):
        vars(module).pop(MARK, None)
