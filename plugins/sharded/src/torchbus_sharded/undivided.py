"""Models that are not sharded: no optimizer had their parameters at their first call."""

from __future__ import annotations

import math
import weakref
from collections.abc import Collection, Iterable

import torch
from torch.distributed.tensor import DTensor
from torch.nn import Module, Parameter
from torchbus.plugin import Context, RanksDiverged, Unsupported, UsageError


class UndividedModels:
    """Tracks unsharded models, which may compute but must not be trained."""

    def __init__(self, session: Context, divided: Collection[Module]) -> None:
        self._session = session
        self._divided = divided
        self._models: weakref.WeakKeyDictionary[Module, int] = weakref.WeakKeyDictionary()
        self._sums: list[float] = []

    def add(self, model: Module) -> None:
        """Note a model that was called.

        A wrapper of sharded models (``torch.compile(model)``) is not noted: it adds no parameters.
        """
        ours = self._undivided_parameters(model)
        if ours and model not in self._models and not any(parameter.is_meta for parameter in ours):
            self._models[model] = len(self._sums)
            self._sums.append(_sum(ours))

    def discard(self, model: Module) -> None:
        self._models.pop(model, None)

    def refuse_gradients(self) -> None:
        """Raise Unsupported if a backward has reached such a model: its gradients stay local."""
        for model in self._models:
            if any(parameter.grad is not None for parameter in self._undivided_parameters(model)):
                raise Unsupported(
                    f"{type(model).__name__} got gradients, but was called before any optimizer had"
                    " its parameters, so it is not divided: make its optimizer before its first"
                    " call, or s.adopt(model)"
                )

    def _undivided_parameters(self, model: Module) -> list[Parameter]:
        """Return the parameters that belong to no sharded model."""
        divided = {part for root in self._divided for part in root.modules()}
        return [
            parameter
            for module in model.modules()
            if module not in divided
            for parameter in module.parameters(recurse=False)
        ]

    def refuse_trained(self) -> None:
        """Raise RanksDiverged, on all ranks, if such a model was trained nevertheless.

        All ranks call it, at the end.
        """
        mine = {
            number: (
                type(model).__name__,
                self._sums[number],
                _sum(self._undivided_parameters(model)),
            )
            for model, number in self._models.items()
        }
        for reported in self._session.all_gather_object(mine):
            for number, (name, before, after) in reported.items():
                if (
                    number in mine
                    and before != after
                    and not math.isclose(mine[number][2], after, rel_tol=1e-6, abs_tol=1e-12)
                ):
                    raise RanksDiverged(
                        f"{name}, which no optimizer has, is no longer the same on all ranks:"
                        " gradients that are made by torch.autograd.grad and applied by hand are"
                        " not averaged. Use an optimizer, and assign them to p.grad before its step"
                    )


def _sum(parameters: list[Parameter]) -> float:
    return float(sum(parameter.detach().double().sum() for parameter in parameters))


def can_be_divided(model: Module) -> bool:
    """Whether the model can be sharded and has parameters. Raises UsageError if it can't."""
    divided = [
        name for name, parameter in model.named_parameters() if isinstance(parameter, DTensor)
    ]
    if len(divided) == len(list(model.parameters())):
        return False
    if divided:
        raise UsageError(
            f"{type(model).__name__} shares {divided[0]} with another model, which is divided"
            " already: under strategy='fsdp' a parameter belongs to one model; use strategy='ddp'"
            " or 'ddp_sharded'"
        )
    _refuse_sparse(model)
    for name, one in model.named_parameters():
        if not one.dim():
            raise UsageError(
                f"{type(model).__name__}.{name} has no dimension, and strategy='fsdp' divides dim"
                " 0: make it a tensor of one element (torch.tensor([value])), or use 'ddp' or"
                " 'ddp_sharded'"
            )
        if not one.numel() and one.requires_grad:
            raise UsageError(
                f"{type(model).__name__}.{name} of shape {tuple(one.shape)} has no elements, and"
                " torch's engine can't reduce its gradient under strategy='fsdp': freeze it"
                " (requires_grad_(False)), or use 'ddp'"
            )
    return True


def refuse_unlike_dtypes(model: Module, units: Iterable[Module]) -> None:
    """Raise UsageError for trained parameters of one unit whose dtypes torch does not reduce.

    ``units`` has inner ones first, in the order in which they are divided.
    """
    seen: set[int] = set()
    names = {id(one): name for name, one in model.named_parameters()}
    for unit in units:
        ours = {id(one): one for one in unit.parameters() if id(one) not in seen}
        seen |= ours.keys()
        kinds = {one.dtype: names[key] for key, one in ours.items() if one.requires_grad}
        if len(kinds) > 1 or any(dtype.is_complex for dtype in kinds):
            which = " and ".join(f"{name} is {_word(dtype)}" for dtype, name in kinds.items())
            raise UsageError(
                f"{type(model).__name__}: {which}. Under strategy='fsdp', what is trained and"
                " gathered together has one dtype, a real one: give it one dtype (precision='bf16'"
                " computes in another), keep a complex parameter as torch.view_as_real(parameter),"
                " or use 'ddp'"
            )


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _refuse_sparse(model: Module) -> None:
    sparse = [path for path, part in model.named_modules() if getattr(part, "sparse", False)]
    if sparse:
        place = f"{type(model).__name__}.{sparse[0]}".rstrip(".")
        raise UsageError(
            f"{place} has sparse gradients, which strategy='fsdp' can't divide: use sparse=False,"
            " or 'ddp'"
        )
