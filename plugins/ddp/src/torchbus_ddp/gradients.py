"""Gradients synchronised for every parameter, whichever way the loop reached it."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torchbus import Session, hookimpl, inventory
from torchbus.errors import Unsupported
from torchbus.seams.backward import BackwardCall, as_list

from torchbus_ddp import double, header, hooks, reductions
from torchbus_ddp.batchnorm import convert
from torchbus_ddp.check import Facts, HeaderCheck, refuse_unlike
from torchbus_ddp.engine import Engine
from torchbus_ddp.header import Header
from torchbus_ddp.loose import average
from torchbus_ddp.plan import Plan
from torchbus_ddp.values import Buffers, copy_from_rank0, refuse_meta

if TYPE_CHECKING:
    from torchbus_ddp.strategy import DDP

DISCOVERY_BACKWARDS = 3
NOT_DIVIDED = (
    "the last batch came from no divided loader: unless each rank drew it from its own random numbers, all ranks computed the "
    "same thing (s.shard divides batches that the script makes itself)"
)


class GradientSync:
    """Knows the trained parameters and owns ``backward``."""

    def __init__(self, session: Session, strategy: DDP) -> None:
        assert session.job is not None
        self._session = session
        self._job = session.job
        self._strategy = strategy
        self._parameters: dict[int, Any] = {}
        self._models: list[weakref.ref[Module]] = []
        self._plans: dict[tuple[bool, ...], Plan] = {}
        self._buffers = Buffers([])
        self._steps = 0
        self._loss_note = ""
        self._quiet_backwards = 0
        self._optimizers: list[int] = []
        self._holders: dict[int, set[int]] = {}
        self._local: set[int] = set()
        self._synced_at: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._check = HeaderCheck(session, self._facts, strategy.make_watch(session))
        session.on_close.callback(self._drop_plans)

    # What is trained -------------------------------------------------------------------------------------------

    @hookimpl
    def parameters_added(self, optimizer: Optimizer | None, parameters: list[Tensor]) -> None:
        """With an optimizer's parameters come the models that own them: a later, rank-dependent first forward of a part
        must not need a collective."""
        if optimizer is not None and not self._session.captures(optimizer):
            return
        if optimizer is not None:
            self._optimizers.append(id(optimizer)) if id(optimizer) not in self._optimizers else None
            for parameter in parameters:
                self._holders.setdefault(id(parameter), set()).add(self._optimizers.index(id(optimizer)))
        new = [parameter for parameter in parameters if id(parameter) not in self._parameters]
        if new:
            models = [model for model in inventory.models_of(new) if not _is_distributed(model)]
            refuse_meta(new, models)
            owned = [parameter for model in models for parameter in model.parameters()]
            self._add([*new, *owned], models, f"the parameters of {type(optimizer).__name__}" if optimizer else "adopted tensors")

    @hookimpl
    def model_found(self, model: Module) -> None:
        known = all(id(parameter) in self._parameters or parameter.is_meta for parameter in model.parameters())  # meta: to count with
        if known or not self._session.captures(model) or _is_distributed(model) or (self._job.backwards and not _trains(model)):
            return
        self._add(list(model.parameters()), [model], type(model).__name__)

    def _add(self, parameters: list[Tensor], models: list[Module], what: str) -> None:
        """Rank 0's values for what is new. All ranks come here alike."""
        new = {id(tensor): tensor for tensor in parameters if id(tensor) not in self._parameters}
        buffers = {id(buffer): buffer for model in models for buffer in model.buffers()}
        copy_from_rank0([*new.values(), *buffers.values()], what)
        if self._strategy.sync_batchnorm:
            for model in models:
                convert(model)
        self._parameters |= new
        self._models += [weakref.ref(model) for model in models]
        self._drop_plans()
        self._quiet_backwards = 0

    @hookimpl
    def mode_changed(self) -> None:
        """While every trained model is in eval mode, random numbers are those of evaluation, alike on all ranks."""
        models = [model for model in (reference() for reference in self._models) if model is not None]
        if models:
            self._session.random.use("own" if any(model.training for model in models) else "evaluation")

    # Backward --------------------------------------------------------------------------------------------------

    @hookimpl
    def run_backward(self, call: BackwardCall, engine: Engine) -> None:
        weight = self._weight(call)
        tensors, gradients = call.start(weight or 1.0)
        if not call.sync or not self._parameters:
            return self._unsynchronised(call, engine, tensors, gradients, weight)
        if not self._lock.acquire(blocking=False):
            raise Unsupported("backward is called in two threads at once: call it in one, or use s.no_sync() in both")
        held = hooks.take_off(self._parameters.values())
        try:
            self._synchronised(call, engine, tensors, gradients, weight)
        finally:
            self._job.waiting = None
            self._lock.release()
            hooks.put_back(held)
        hooks.run(held)

    def _unsynchronised(self, call: BackwardCall, engine: Engine, tensors: list[Any], gradients: list[Any], weight: float) -> None:
        """What this rank has by itself is averaged with the next synchronised backward, or at ``optimizer.step``."""
        trained = [parameter for parameter in self._parameters.values() if parameter.requires_grad]
        self._local.update(map(id, trained))
        if weight == 0.0:
            return self._discard(engine, trained, tensors, gradients, call)
        engine(tensors, gradients, call.retain_graph, call.create_graph, inputs=call.inputs)

    def _synchronised(self, call: BackwardCall, engine: Engine, tensors: list[Any], gradients: list[Any], weight: float) -> None:
        plan = self._plan()
        if call.create_graph:
            tensors, plain = call.start()
            return double.backward(engine, plan.parameters, tensors, plain, call.inputs, weight)
        loss = _scalar(call)
        if not self._loss_note and loss is not None and self._job.backwards == 0 and self._session.is_main:
            self._loss_note = self._look_at(loss)
        slots = header.numbers(weight, self._job.backwards * 7 + self._steps, self._session.share.position, self._check.watch.input_sum)
        inputs = call.inputs
        if weight == 0.0:
            self._discard(engine, plan.parameters, tensors, gradients, call)
            tensors, gradients, inputs = [], [], None
        elif inputs is not None:
            inputs = [*as_list(inputs), plan.header.parameter]
        self._job.waiting = ("backward", self._job.backwards + 1)
        plan.backward(engine, tensors, gradients, call.retain_graph, inputs, slots, loss, self._local)
        self._job.backwards += 1
        if self._local:
            self._local.difference_update(plan.synchronised())
        self._buffers.copy_from_rank0()
        self._read(plan.header, call, loss)
        self._after_sync()

    def _discard(self, engine: Engine, parameters: list[Any], tensors: list[Any], gradients: list[Any], call: BackwardCall) -> None:
        """A rank without samples of its own: its backward runs, its gradients are dropped."""
        kept = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        engine(tensors, gradients, call.retain_graph, False, inputs=call.inputs)
        for parameter, gradient in zip(parameters, kept, strict=True):
            parameter.grad = gradient

    def _read(self, told: Header, call: BackwardCall, loss: Tensor | None) -> None:
        """Check that the ranks are at the same point, and give the loop the loss over all of them."""
        self._check.take(told)
        if loss is not None and self._strategy.sync_loss and not (call.retain_graph or loss.is_leaf or loss._is_view()):
            told.give_loss(loss)

    def _facts(self) -> Facts:
        return Facts(self._job.backwards, self._steps, self._session.share.position)

    @hookimpl
    def session_end(self, error: BaseException | None) -> None:
        if error is None:
            self._check.finish()
            if not self._job.backwards:
                refuse_unlike(self._session, list(self._parameters.values()))

    def _drop_plans(self) -> None:
        for plan in self._plans.values():
            plan.close()
        self._plans.clear()

    def _after_sync(self) -> None:
        if not self._session.random.is_split:
            self._split_random()
        self._quiet_backwards += 1
        if self._quiet_backwards == DISCOVERY_BACKWARDS and self._optimizers:
            self._session.end_discovery()

    def _look_at(self, loss: Tensor) -> str:
        """What there is to say about the first loss."""
        return reductions.look(loss, self._strategy.loss_reduction)

    def _split_random(self) -> None:
        """From the first backward on, each rank draws random numbers of its own."""
        self._session.random.split(self._session.rank)

    def _weight(self, call: BackwardCall) -> float:
        weight = self._session.share.weight if call.weight is None else call.weight
        if self._strategy.loss_reduction == "sum":
            return float(self._session.world_size) if weight else 0.0
        return weight

    def _plan(self) -> Plan:
        key = tuple([parameter.requires_grad for parameter in self._parameters.values()])
        plan = self._plans.get(key)
        if plan is None:
            trained = [parameter for parameter in self._parameters.values() if parameter.requires_grad]
            models = inventory.models_of(trained)
            self._buffers = Buffers([model for model in models if not _is_distributed(model)])
            holders = [tuple(self._holders.get(id(parameter), ())) for parameter in trained]
            plan = self._plans[key] = Plan(self._session, trained, holders, _sparse(models), self._strategy.ddp_options())
        return plan

    # Step ------------------------------------------------------------------------------------------------------

    @hookimpl
    def before_optimizer_step(self, optimizer: Optimizer, closure: Any) -> None:
        """Gradients that did not come through a synchronised backward (``autograd.grad``, ``no_sync``) are averaged here."""
        fresh = self._synced_at.get(optimizer, 0) != self._job.backwards
        self._synced_at[optimizer] = self._job.backwards
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]} & self._local if self._local else None
        if closure is None and self._session.captures(optimizer) and (held or not fresh):
            average(optimizer, 1.0 if held else self._session.share.weight)
            self._local -= held or set()

    @hookimpl
    def after_optimizer_step(self, optimizer: Optimizer) -> None:
        self._steps += 1

    @hookimpl
    def scheduler_metric(self, metric: Any) -> Any:
        return self._session.reduce(metric)

    # Explain ---------------------------------------------------------------------------------------------------

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]]:
        notes = [self._loss_note] if self._loss_note else []
        if self._job.backwards and not self._session.share.indices and self._session.world.data.parts > 1:
            notes.append(NOT_DIVIDED)
        return {"notes": notes} if notes else {}

    @hookimpl
    def describe(self, thing: Any) -> str | None:
        if isinstance(thing, Module):
            if _is_distributed(thing):
                return "already distributed by the script: left alone"
            known = sum(id(parameter) in self._parameters for parameter in thing.parameters())
            total = sum(1 for _ in thing.parameters())
            if not known:
                return "not synchronised: not called yet, and in no optimizer"
            if not self._job.backwards:
                return "to be synchronised in backward: none was heard yet"
            return "synchronised in backward" + (f" ({known} of {total} tensors, by their optimizer)" if known < total else "")
        return None


def _scalar(call: BackwardCall) -> Tensor | None:
    loss = call.loss
    return loss if isinstance(loss, Tensor) and loss.dim() == 0 and loss.is_floating_point() else None


def _trains(model: Module) -> bool:
    """Whether this call may be part of training. A teacher or a metric's network that comes in mid-run need not be the same
    on all ranks, nor be called by all of them."""
    return torch.is_grad_enabled() and model.training and any(parameter.requires_grad for parameter in model.parameters())


def _sparse(models: list[Module]) -> set[int]:
    """The ids of parameters that belong to an Embedding with sparse gradients."""
    modules = [module for model in models for module in model.modules() if getattr(module, "sparse", False) is True]
    return {id(module._parameters.get("weight")) for module in modules}


def _is_distributed(model: Module) -> bool:
    return isinstance(model, DistributedDataParallel) or type(model).__name__.startswith(("FSDP", "FullyShardedDataParallel"))
