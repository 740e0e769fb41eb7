"""Models whose layers are divided in place, and the optimizers that hold them."""

from __future__ import annotations

import copy
import traceback
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NoReturn

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.distributed.tensor import DTensor
from torch.nn import Module
from torch.optim import Optimizer
from torchbus import objects
from torchbus.plugin import BackwardCall, Context, Unsupported, hookimpl

from torchbus_strategy import compat, sharding
from torchbus_strategy.parameters import averaging, rank0_values
from torchbus_tensor_parallel import dtensor
from torchbus_tensor_parallel._compat import (
    forget_distribution,
    hooks_after,
    hooks_before,
    load_hooks,
    parameters,
    state_hooks,
)
from torchbus_tensor_parallel.checks import (
    refuse_derivatives,
    refuse_graphs,
    refuse_optimizer,
    refuse_second_derivatives,
)
from torchbus_tensor_parallel.dtensor import PlainLoss, refuse_divided_loss
from torchbus_tensor_parallel.layers import DividedLayers
from torchbus_tensor_parallel.plans import ModulePlan


class DividedModels:
    """Divides a model when an optimizer gets its parameters."""

    def __init__(
        self, session: Context, ranks: TensorParallelGroups, plan: ModulePlan, loss_parallel: bool
    ) -> None:
        assert session.job is not None
        self._session, self._job = session, session.job
        self._ranks = ranks
        self._plan, self._loss_parallel = plan, loss_parallel
        self._undo = ExitStack()
        self._layers = DividedLayers(
            plan, ranks.tensor, self._undo, loss_parallel, dtensor.gathered, True
        )
        self._models: weakref.WeakKeyDictionary[Module, int] = weakref.WeakKeyDictionary()
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._local_steps = sharding.LocalSteps(session)
        self._loss = PlainLoss()
        self._replaced: dict[int, nn.Parameter] = {}
        self._adding: list[Node] = []
        self._old: list[Tensor] = []  # held so that no new tensor gets one of their ids
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
        for one in [reference() for reference in self._optimizers]:
            if one is not None:
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
        """Clip by torch, which accepts whole tensors beside DTensors. Return a plain norm."""
        divided = any(isinstance(one, DTensor) for one in parameters)
        norm: Tensor | None = sharding.whole(run(max_norm)) if divided else None
        return norm

    def _take(self, optimizer: Optimizer) -> None:
        if any(reference() is optimizer for reference in self._optimizers):
            return
        refuse_optimizer(optimizer)
        self._optimizers.append(weakref.ref(optimizer))
        self._local_steps.add(optimizer)
        add = optimizer.register_state_dict_post_hook
        self._undo.callback(add(lambda _, state: sharding.whole_optimizer(state)).remove)
        self._undo.callback(
            optimizer.register_load_state_dict_post_hook(sharding.divided_optimizer).remove
        )

    def _divide(self, model: Module) -> None:
        """Divide rank 0's values. All ranks call it with the same models."""
        held = [*model.parameters(), *model.buffers()]
        rank0_values.copy_from_rank0(held, f"the tensors of {type(model).__name__}")
        before, hooks = dict(model.named_parameters()), hooks_of(model)
        self._models[model] = self._layers.divide(model)
        self._adding += map(dtensor.make_whole_when_added, dtensor.undivided(model))
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
        old.data, old.grad = old.data.new_empty(0), None  # frees the whole tensor

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
        optimizers = sharding.alive_on_all(self._session, self._optimizers)
        for model in list(self._models):
            made = _make_whole(model)
            for optimizer in optimizers:
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


PUT = ("__deepcopy__", "__reduce_ex__")
TABLES = (hooks_before, hooks_after, state_hooks, load_hooks)
Keys = list[set[int]]


def hooks_of(model: Module) -> dict[Module, Keys]:
    """Return the present keys of each module's hooks."""
    return {module: [set(table(module)) for table in TABLES] for module in model.modules()}


def make_copies_whole(before: dict[Module, Keys]) -> Callable[[], None]:
    """Let these modules be copied without the hooks that were added since ``before``.

    Returns a function that undoes this.
    """
    modules = weakref.WeakSet(before)
    for module, old in before.items():
        put = [set(table(module)) - keys for table, keys in zip(TABLES, old, strict=True)]
        vars(module)["__deepcopy__"] = partial(_copied, weakref.ref(module), put)
        vars(module)["__reduce_ex__"] = partial(_no_pickle, type(module).__name__)

    def undo() -> None:
        for module in modules:
            for name in PUT:
                vars(module).pop(name, None)

    return undo


def _no_pickle(name: str, protocol: object) -> NoReturn:
    raise Unsupported(
        f"pickling {name} under strategy='tp' (torch.save(model), or a process that gets it): a"
        " rank has only parts of its layers. Save model.state_dict(), which is whole, or save the"
        " model after the block"
    )


def _copied(held: weakref.ref[Module], put: Keys, memo: dict[int, object]) -> Module:
    module = held()
    assert module is not None
    ours = {name: vars(module).pop(name) for name in PUT}
    for table, keys in zip(TABLES, put, strict=True):
        # the hooks are not copied, and so the session that they refer to is not copied either
        memo.update((id(hook), hook) for key, hook in table(module).items() if key in keys)
    try:
        made = copy.deepcopy(module, memo)
    finally:
        vars(module).update(ours)
    for table, keys in zip(TABLES, put, strict=True):
        for key in keys:
            table(made).pop(key, None)
    forget_distribution(made)
    return made


class TensorParallelGroups:
    """The process groups of tp. All ranks call the constructor.

    ``mesh`` has two dimensions: "dp", with the number of parts of the data, and "tp", with the
    number of ranks that share a layer. ``tensor`` is the second.
    """

    def __init__(self, session: Context) -> None:
        self.parts, self.mesh = session.world.data.parts, session.world.mesh
        self.tensor = self.mesh["tp"]
        self.size = self.tensor.size()

    @torch.no_grad()
    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors in place by their means over all ranks.

        The mean of a shard is over the ranks with the same shard. All ranks call it with tensors of
        the same shapes, dtypes and devices.
        """
        shards = [compat.local_part(one) for one in tensors if compat.is_sharded(one)]
        copies = [compat.local_part(one) for one in tensors if not compat.is_sharded(one)]
        averaging.mean_over(copies)
        if self.parts > 1:
            averaging.mean_over(shards, self.mesh.get_group("dp"))


DTENSORS = "torch.distributed.tensor"


def translate(error: BaseException | None) -> Unsupported | None:
    """Return the error that replaces torch's, if torch's is about divided tensors."""
    if error is None or not (sharding.has_sign(error) or _is_asserted(error)):
        return sharding.no_entry(error, "that strategy='tp' has divided")
    said = str(error).strip().splitlines() or [type(error).__name__]
    return Unsupported(
        f"{sharding.line_of(error)} computes with a divided parameter or gradient in a way that"
        f" torch does not offer (it says: {said[0]}). Under strategy='tp', take"
        " tensor.full_tensor() there, leave the layer out of the plan, or use strategy='ddp'"
    )


def _is_asserted(error: BaseException) -> bool:
    """Whether an error is an assertion in DTensor's code, which has no text."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return (
        isinstance(error, AssertionError)
        and bool(frames)
        and str(frames[-1].f_globals.get("__name__")).startswith(DTENSORS)
    )
