"""Models that are not divided: no optimizer had their parameters at their first call."""

from __future__ import annotations

import math
import weakref
from collections.abc import Collection

from torch.nn import Module, Parameter
from torchbus.plugin import Context, RanksDiverged, Unsupported


class UndividedModels:
    """They may compute, but must not be trained."""

    def __init__(self, session: Context, divided: Collection[Module]) -> None:
        self._session = session
        self._divided = divided
        self._models: weakref.WeakKeyDictionary[Module, int] = weakref.WeakKeyDictionary()
        self._sums: list[float] = []

    def add(self, model: Module) -> None:
        """Note a model that was called.

        A wrapper of divided models (``torch.compile(model)``) has no parameters of its own.
        """
        own = self._own(model)
        if own and model not in self._models and not any(parameter.is_meta for parameter in own):
            self._models[model] = len(self._sums)
            self._sums.append(_sum(own))

    def discard(self, model: Module) -> None:
        self._models.pop(model, None)

    def refuse_gradients(self) -> None:
        """Raise Unsupported if a backward has reached one: its gradients are not averaged."""
        for model in self._models:
            if any(parameter.grad is not None for parameter in self._own(model)):
                raise Unsupported(
                    f"{type(model).__name__} got gradients, but was called before any optimizer had"
                    " its parameters, so it is not divided: make its optimizer before its first"
                    " call, or s.adopt(model)"
                )

    def _own(self, model: Module) -> list[Parameter]:
        """The parameters that belong to no divided model."""
        divided = {part for root in self._divided for part in root.modules()}
        return [
            parameter
            for module in model.modules()
            if module not in divided
            for parameter in module.parameters(recurse=False)
        ]

    def refuse_trained(self) -> None:
        """Raise RanksDiverged, on all ranks, if such a model was trained by other means.

        All ranks call it, at the end.
        """
        mine = {
            number: (type(model).__name__, self._sums[number], _sum(self._own(model)))
            for model, number in self._models.items()
        }
        for told in self._session.all_gather_object(mine):
            for number, (name, before, after) in told.items():
                if (
                    number in mine
                    and before != after
                    and not math.isclose(mine[number][2], after, rel_tol=1e-6, abs_tol=1e-12)
                ):
                    raise RanksDiverged(
                        f"{name}, which no optimizer has, is not the same on all ranks any more:"
                        " gradients that are made by torch.autograd.grad and applied by hand are"
                        " not averaged. Use an optimizer, or apply s.reduce(gradient)"
                    )


def _sum(parameters: list[Parameter]) -> float:
    return float(sum(parameter.detach().double().sum() for parameter in parameters))
