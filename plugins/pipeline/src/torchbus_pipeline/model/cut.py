"""One model, cut into stages."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from itertools import accumulate

from torch import nn
from torch.nn import Module
from torchbus.plugin import UsageError

from torchbus_pipeline.model import elsewhere
from torchbus_pipeline.model.layers import Layers
from torchbus_pipeline.model.marks import Marks, unmark


class Cut:
    """Consecutive layers, of which each stage has some, and each place of the pipeline some stages.

    ``balance``: how many layers each stage has. ``owners``: each layer's stage. Stage ``s`` is at
    place ``s`` modulo the number of places. ``loss_kind``: the loss was seen to be a "mean" or a
    "sum" over samples, or neither (""); None before it was seen. ``measured``: words about the
    times of layers, if they were measured.
    """

    def __init__(
        self, model: Module, found: Layers, balance: Sequence[int], place: int, places: int
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
        self.own = [stage for stage in range(self.stages) if stage % places == place]
        self.measured = ""
        self.written: set[type] = set()
        self.forwards = 0
        self.loss_kind: str | None = None

    def layers_of(self, stage: int) -> list[tuple[int, Module]]:
        """The layers of a stage, with their numbers."""
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
        """Raise UsageError if a parameter belongs to two stages, or also to what is outside."""
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

    def divide(self, ranks: Sequence[int], marks: Marks) -> None:
        """Note whose each layer is, and let go of the others' values."""
        for name, layer, stage in zip(self.found.names(), self.layers, self.stage_of, strict=True):
            place = self.place_of(stage)
            where = f"{name} of {self.name} is on rank {ranks[place]}"
            for module in layer.modules():
                marks.put(module, place)
            if place != self.place:
                for parameter in layer.parameters():
                    if type(parameter) is nn.Parameter:
                        elsewhere.empty(parameter, where)

    def forget(self) -> None:
        """Leave no mark on the modules."""
        for layer in self.layers:
            for module in layer.modules():
                unmark(module)
