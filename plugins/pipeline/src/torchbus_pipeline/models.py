"""Cuts models into stages when an optimizer gets their parameters."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator
from functools import partial

from torch import Tensor
from torch.nn import Module
from torch.optim import LBFGS, Optimizer
from torchbus import objects
from torchbus.plugin import Context, UsageError, hookimpl

from torchbus_pipeline import cut
from torchbus_pipeline.cut import Cut, LayerRange
from torchbus_pipeline.divergence import CheckedBarrier, PipelineRanks
from torchbus_pipeline.options import TIME, PipelineOptions
from torchbus_pipeline.remote_parameters import Elsewhere
from torchbus_pipeline.timing import FirstCalls, is_waiting
from torchbus_strategy.checks import hyperparameters
from torchbus_strategy.parameters import rank0_values

NOT_CALLED = (
    "{} was not called before this backward, and balance='time' measures its layers at its first"
    " call: call the model itself, or use balance='parameters'"
)


class CutModels:
    """The cut models, and the parameters outside of them.

    The functions in ``on_cut`` are called with each new ``Cut``, on all ranks.
    """

    def __init__(
        self,
        session: Context,
        options: PipelineOptions,
        team: PipelineRanks,
        barrier: CheckedBarrier,
    ) -> None:
        self._session, self._options, self._team, self._barrier = session, options, team, barrier
        self._cuts: weakref.WeakKeyDictionary[Module, Cut] = weakref.WeakKeyDictionary()
        self._whole: dict[str, str] = {}
        self._shared: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._numbers = itertools.count()
        self._first_calls = FirstCalls(session, barrier)
        self.on_cut: list[Callable[[Cut], None]] = []
        session.on_close.callback(self._forget)

    def __iter__(self) -> Iterator[Cut]:
        return iter(list(self._cuts.values()))

    @hookimpl
    def parameters_added(self, optimizer: Optimizer | None, parameters: list[Tensor]) -> None:
        """Cut the models that own the parameters, which must be the same on all ranks."""
        if optimizer is not None:
            if not self._session.captures(optimizer):
                return
            refuse_optimizer(optimizer)
            self._optimizers.append(weakref.ref(optimizer))
        made_with = hyperparameters.of_optimizer(optimizer) if optimizer else {}
        what = type(optimizer).__name__ if optimizer else "adopted tensors"
        known = {id(one) for cut in self for one in self._tensors(cut.model())} | {*self._shared}
        new = [one for one in parameters if id(one) not in known]
        models = objects.models_of(new) if new else []
        owned = [tensor for model in models for tensor in self._tensors(model)]
        self._copy([*new, *owned], models, what, made_with)
        for model in models:
            self._cut(model)

    def _tensors(self, model: Module | None) -> list[Tensor]:
        return [] if model is None else [*model.parameters(), *model.buffers()]

    def _copy(
        self,
        tensors: list[Tensor],
        models: list[Module],
        what: str,
        made_with: hyperparameters.Settings,
    ) -> None:
        """Broadcast rank 0's values of new tensors. All ranks must call this."""
        new = {id(one): one for one in tensors if id(one) not in self._shared}
        if new:
            self._barrier.sync(f"the parameters of {what}")
            rank0_values.copy_from_rank0(list(new.values()), what, made_with)
            self._shared.update(new)

    def _cut(self, model: Module) -> None:
        ranks, name = self._team.size, type(model).__name__
        found = cut.find(model, self._options.blocks)
        needed = ranks * self._options.stages_of_rank()
        has = 0 if found is None else len(found.holder)
        if found is None or (isinstance(self._options.balance, str) and has < needed):
            self._whole[name] = self._too_few(name, has, needed)
        elif self._options.balance == TIME:
            self._whole[name] = NOT_CALLED.format(name)
            self._first_calls.wait_for(model, found, partial(self._divide, model, found))
        else:
            self._divide(model, found)

    def _divide(
        self, model: Module, found: LayerRange, seconds: list[float] | None = None, why: str = ""
    ) -> None:
        ranks, name = self._team.size, type(model).__name__
        self._whole.pop(name, None)
        balance = self._options.balance_of(name, list(found.holder), ranks, seconds)
        self._barrier.sync(f"dividing {name} as {balance}")
        cut = Cut(model, found, balance, self._team.place, ranks)
        cut.measured = _measured(seconds, why)
        cut.refuse_shared()
        self._cuts[model] = cut
        cut.divide(self._team.ranks, self._numbers)
        for listener in self.on_cut:
            listener(cut)

    def _too_few(self, name: str, has: int, needed: int) -> str:
        if not has:
            return (
                f"{name} has no list of layers: it is not an nn.Sequential, and has no"
                " nn.ModuleList or nn.Sequential of repeated blocks. Name its list of layers with"
                " blocks='path.of.the.list'"
            )
        interleaved = self._options.schedule == "interleaved"
        per = ", two for each rank of schedule='interleaved'" if interleaved else ""
        return f"{name} has {has} layers, and there are {needed} stages{per}: use fewer devices"

    def refuse_uncut(self) -> None:
        """Raise UsageError if there are models but none could be cut."""
        if self._whole and not len(self._cuts):
            raise UsageError(f"strategy='pipeline': {'; '.join(self._whole.values())}")

    # For the backward ----------------------------------------------------------------------------

    def inside(self) -> set[int]:
        """Return the ids of the parameters of all layers, including those of other ranks."""
        return {
            id(parameter)
            for cut in self
            for layer in cut.layers
            for parameter in layer.parameters()
        }

    def trained(self) -> list[Tensor]:
        """Return the parameters that this rank has and trains, in one order on all replicas."""
        models = [model for cut in self if (model := cut.model()) is not None]
        found = [one for model in models for one in model.parameters()]
        every = {id(one): one for one in [*found, *self._shared.values()]}
        return [
            one
            for one in every.values()
            if one.requires_grad and not isinstance(one, Elsewhere) and one.is_leaf
        ]

    def optimizer_settings(self) -> hyperparameters.Settings:
        """Return the present hyperparameters of the optimizers that are alive."""
        found = dict.fromkeys(reference() for reference in self._optimizers)
        alive = [one for one in found if one is not None]
        return hyperparameters.of_numbered(list(enumerate(alive)))

    def _forget(self) -> None:
        cut.remove_marks()
        self._shared.clear()

    @hookimpl
    def describe(self, thing: object) -> str | None:
        if not isinstance(thing, Module):
            return None
        cut = self._cuts.get(thing)
        if cut is None and is_waiting(thing):
            return "divided at its first call, by the time that its layers take"
        if cut is None:
            return "computed whole by every rank"
        path = f" of {cut.found.path}" if cut.found.path else ""
        return (
            f"cut into {cut.stages} stages, with {', '.join(map(str, cut.balance))} layers{path}"
            f"{cut.measured}; what is outside them is computed by every rank"
        )


def _measured(seconds: list[float] | None, why: str) -> str:
    """Return the text of ``explain()`` about the balance, for ``balance="time"``."""
    if seconds is not None:
        times = ", ".join(f"{1000 * one:.3g}" for one in seconds)
        return f" (by time: they took {times} ms on rank 0)"
    return f" (by parameters, because their time could not be measured: {why})" if why else ""


def refuse_optimizer(optimizer: Optimizer) -> None:
    """Raise UsageError for an optimizer whose step needs the parameters of several ranks."""
    if isinstance(optimizer, LBFGS):
        raise UsageError(
            "strategy='pipeline' with LBFGS: its step looks at all parameters together, of which a"
            " rank has only those of its stages; use strategy='ddp' or 'dp'"
        )
