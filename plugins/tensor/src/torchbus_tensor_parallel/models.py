"""Models whose layers are divided in place, and the optimizers that hold them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import ExitStack

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.distributed.tensor import DTensor
from torch.nn import Module
from torch.optim import Optimizer
from torchbus import objects
from torchbus.plugin import BackwardCall, Context, hookimpl

from torchbus_strategy import sharding
from torchbus_strategy.parameters import rank0_values
from torchbus_tensor_parallel._compat import parameters
from torchbus_tensor_parallel.checks import (
    refuse_derivatives,
    refuse_graphs,
    refuse_optimizer,
    refuse_second_derivatives,
)
from torchbus_tensor_parallel.copies import hooks_of, make_copies_whole
from torchbus_tensor_parallel.dtensor import gradients
from torchbus_tensor_parallel.dtensor.loss import PlainLoss, refuse_divided_loss
from torchbus_tensor_parallel.layers import Layers
from torchbus_tensor_parallel.plans.plan import Plan
from torchbus_tensor_parallel.ranks import Ranks
from torchbus_tensor_parallel.translation import translate


class DividedModels:
    """Divides a model when an optimizer gets its parameters."""

    def __init__(self, session: Context, ranks: Ranks, plan: Plan, loss_parallel: bool) -> None:
        assert session.job is not None
        self._session, self._job = session, session.job
        self._ranks = ranks
        self._plan, self._loss_parallel = plan, loss_parallel
        self._undo = ExitStack()
        self._layers = Layers(
            plan, ranks.tensor, self._undo, loss_parallel, gradients.gathered, True
        )
        self._models: weakref.WeakKeyDictionary[Module, int] = weakref.WeakKeyDictionary()
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._local_steps = sharding.LocalSteps(session)
        self._loss = PlainLoss()
        self._replaced: dict[int, nn.Parameter] = {}
        self._adding: list[Node] = []
        self._old: list[Tensor] = []  # so that no new tensor gets one of their ids
        session.on_close.callback(self._undo.close)
        session.replace(torch.autograd, "grad", refuse_graphs)
        session.replace(torch.autograd, "grad", refuse_derivatives)

    @hookimpl(tryfirst=True)
    def parameters_added(self, optimizer: Optimizer | None, parameters: list[Tensor]) -> None:
        """Divide the models. The listeners after this one find the divided parameters."""
        if optimizer is None or not self._session.captures(optimizer):
            return
        self._take(optimizer)
        for model in objects.models_of(parameters):
            if model not in self._models:
                self._divide(model)
        for one in self._optimizers:
            sharding.swap(one, self._replaced)
        parameters[:] = [self._replaced.get(id(one), one) for one in parameters]

    @hookimpl
    def before_backward(self, call: BackwardCall) -> None:
        if not self._job.backwards:
            self._plan.refuse_unused()
        refuse_second_derivatives(call)
        if self._loss_parallel:
            refuse_divided_loss(call)
        self._loss.begin(call)

    @hookimpl
    def after_backward(self, call: BackwardCall) -> None:
        self._loss.end(call)

    @hookimpl(trylast=True)
    def clip_gradients(
        self, parameters: list[Tensor], max_norm: float, run: Callable[[float], Tensor]
    ) -> Tensor | None:
        """Torch clips a mixture of whole tensors and DTensors. The loop gets a plain norm."""
        divided = any(isinstance(one, DTensor) for one in parameters)
        norm: Tensor | None = sharding.whole(run(max_norm)) if divided else None
        return norm

    def _take(self, optimizer: Optimizer) -> None:
        if optimizer in self._optimizers:
            return
        refuse_optimizer(optimizer)
        self._optimizers.add(optimizer)
        self._local_steps.add(optimizer)
        self._undo.callback(optimizer.register_state_dict_post_hook(_whole_state).remove)
        self._undo.callback(
            optimizer.register_load_state_dict_post_hook(sharding.divided_optimizer).remove
        )

    def _divide(self, model: Module) -> None:
        """Divide rank 0's values. All ranks call it with the same models."""
        held = [*model.parameters(), *model.buffers()]
        rank0_values.copy_from_rank0(held, f"the tensors of {type(model).__name__}")
        before, hooks = dict(model.named_parameters()), hooks_of(model)
        self._models[model] = self._layers.divide(model)
        self._adding += map(gradients.make_whole_when_added, gradients.undivided(model))
        if not self._models[model]:
            return
        for name, new in model.named_parameters():
            self._replace(before[name], new)
        gather = sharding.whole_states(self._session)
        for module in model.modules():
            self._undo.callback(module.register_state_dict_post_hook(gather).remove)
            self._undo.callback(
                module.register_load_state_dict_pre_hook(sharding.divided_states).remove
            )
        self._undo.callback(make_copies_whole(hooks))

    def _replace(self, old: nn.Parameter, new: nn.Parameter) -> None:
        if new is old:
            return
        if old.grad is not None:
            new.grad = sharding.like(old.grad, new)
        self._replaced[id(old)] = new
        self._old.append(old)
        old.data, old.grad = old.data.new_empty(0), None  # the whole is not kept

    # The end -------------------------------------------------------------------------------------

    @hookimpl(trylast=True)
    def session_end(self, error: BaseException | None) -> None:
        """Leave whole models, and optimizers that hold them. All ranks call it."""
        self._replaced.clear()
        self._adding.clear()
        refusal = translate(error)
        if refusal is not None:
            raise refusal from error
        if error is not None:
            return
        self._plan.refuse_unused()
        for model in list(self._models):
            made = _make_whole(model)
            for optimizer in self._optimizers:
                sharding.swap(optimizer, made)

    @hookimpl
    def describe(self, thing: object) -> str | None:
        if not isinstance(thing, Module) or thing not in self._models:
            return None
        count = self._models[thing]
        return (
            f"{count} layers divided over {self._ranks.size} ranks"
            if count
            else "whole on every rank: the plan names no part of it"
        )

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]]:
        return {"plan": self._plan.lines()}


def _whole_state(optimizer: Optimizer, state: dict[str, object]) -> dict[str, object]:
    """Give ``optimizer.state_dict()`` whole tensors, on all ranks. All of them call it."""
    return sharding.whole_optimizer(state)


@torch.no_grad()
def _make_whole(model: Module) -> dict[int, nn.Parameter]:
    """Give a model whole parameters. Returns them by the ``id`` of the divided ones."""
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, held in list(parameters(module).items()):
            if isinstance(held, DTensor):
                new = nn.Parameter(sharding.whole(held), held.requires_grad)
                new.grad = sharding.whole(held.grad)
                parameters(module)[name] = made[id(held)] = new
    return made
