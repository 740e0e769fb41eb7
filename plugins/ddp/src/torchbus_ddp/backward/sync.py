"""Gradients synchronised for every parameter, whichever way the loop reached it."""

from __future__ import annotations

import threading
import weakref
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torchbus.plugin import BackwardCall, Constants, Context, Count, Number, Unsupported, as_list, hookimpl, made_anew

from torchbus_ddp.backward import create_graph as double
from torchbus_ddp.backward import header
from torchbus_ddp.backward import user_hooks as hooks
from torchbus_ddp.backward.engine import Engine
from torchbus_ddp.backward.header import Header
from torchbus_ddp.backward.loss_counts import Counted
from torchbus_ddp.backward.plan import Plan
from torchbus_ddp.checks import loss_kind as reductions
from torchbus_ddp.checks.divergence import Facts, HeaderCheck, refuse_unlike
from torchbus_ddp.parameters.assigned import Assigned
from torchbus_ddp.parameters.averaging import average
from torchbus_ddp.parameters.rank0_values import Buffers
from torchbus_ddp.parameters.trained import Trained
from torchbus_ddp.parameters.unsynchronised import Unsynchronised

if TYPE_CHECKING:
    from torchbus_ddp.strategy import DDP

DISCOVERY_BACKWARDS = 3
NOT_DIVIDED = (
    "the last batch came from no divided loader: unless each rank drew it from its own random numbers, all ranks computed the "
    "same thing (s.shard divides batches that the script makes itself)"
)


class GradientSync:
    """Owns ``backward``."""

    def __init__(self, session: Context, strategy: DDP) -> None:
        assert session.job is not None
        self._session = session
        self._job = session.job
        self._strategy = strategy
        self.trained = Trained(session, strategy.sync_batchnorm, self._forget)
        self._plans: dict[tuple[bool, ...], Plan] = {}
        self._buffers = Buffers([])
        self._steps = 0
        self._loss_note = ""
        self._quiet_backwards = 0
        self._local: set[int] = set()
        self._assigned = Assigned()
        self._synced_at: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._counted = Counted(session, strategy)
        constants = Constants(session, self.trained.optimizer_settings)
        self._check = HeaderCheck(session, self._facts, strategy.make_watch(session), constants, self._counted.look)
        session.bus.register(self.trained, f"{strategy.name}.trained")
        session.bus.register(Unsynchronised(session, self.trained, self._local), f"{strategy.name}.unsynchronised")
        session.on_close.callback(self._drop_plans)

    def _forget(self) -> None:
        """There are other parameters: all ranks come here alike."""
        self._drop_plans()
        self._local &= {id(parameter) for parameter in self.trained.parameters}
        self._quiet_backwards = 0

    # Backward --------------------------------------------------------------------------------------------------

    @hookimpl
    def run_backward(self, call: BackwardCall, engine: Engine) -> None:
        if not self.trained.own:
            return self._run(call, engine)
        with self.trained.own.over_all_ranks():
            self._run(call, engine)

    def _run(self, call: BackwardCall, engine: Engine) -> None:
        count = self._count(call)
        if not call.sync or not self.trained.parameters:
            return self._unsynchronised(call, engine, count)
        if not self._lock.acquire(blocking=False):
            raise Unsupported("backward is called in two threads at once: call it in one, or use s.no_sync() in both")
        held = hooks.take_off(self.trained.parameters)
        try:
            with made_anew(self.trained.parameters) if count.anew and not call.create_graph else nullcontext():
                self._synchronised(call, engine, count)
            self._assigned.synchronised()
        finally:
            self._job.go_on()
            self._lock.release()
            hooks.put_back(held)
        hooks.run(held)

    def _unsynchronised(self, call: BackwardCall, engine: Engine, count: Count) -> None:
        """What this rank has by itself is averaged with the next synchronised backward, or at ``optimizer.step``."""
        tensors, gradients = call.start(1.0 if count.is_zero else count.weight)
        trained = [parameter for parameter in self.trained.parameters if parameter.requires_grad]
        self._local.update(map(id, trained))
        if count.is_zero:
            return self._discard(engine, trained, tensors, gradients, call)
        engine(tensors, gradients, call.retain_graph, call.create_graph, inputs=call.inputs)

    def _synchronised(self, call: BackwardCall, engine: Engine, count: Count) -> None:
        plan = self._plan()
        self._job.wait_in("backward", self._job.backwards + 1)
        count = self._counted.meet(count)
        if call.create_graph:
            tensors, plain = call.start()
            return double.backward(engine, plan.parameters, tensors, plain, call.inputs, count)
        tensors, gradients = call.start(1.0 if count.is_zero else count.weight)
        loss = _scalar(call)
        if not self._loss_note and loss is not None and self._job.backwards == 0 and self._session.is_main:
            self._loss_note = self._look_at(loss)
        progress = self._job.backwards * 7 + self._steps
        constants = self._check.constants.number(loss, self._session.share.weight, progress)
        slots = header.numbers(count, progress, self._session.share.position, self._check.watch.input_sum, constants)
        inputs = call.inputs
        if count.is_zero:
            self._discard(engine, plan.parameters, tensors, gradients, call)
            tensors, gradients, inputs = [], [], None
        elif inputs is not None:
            inputs = [*as_list(inputs), plan.header.parameter]
        plan.backward(engine, tensors, gradients, call.retain_graph, inputs, slots, loss, self._local)
        self._job.count_backward()
        if self._local:
            self._local.difference_update(plan.synchronised())
        self._buffers.copy_from_rank0()
        scale = self._counted.settle(plan.header, count, [*plan.parameters, *self.trained.own.tensors()])
        self._read(plan.header, call, loss, scale)
        self._after_sync()

    def _discard(self, engine: Engine, parameters: list[Any], tensors: list[Any], gradients: list[Any], call: BackwardCall) -> None:
        """A rank without samples of its own: its backward runs, its gradients are dropped."""
        kept = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        engine(tensors, gradients, call.retain_graph, False, inputs=call.inputs)
        for parameter, gradient in zip(parameters, kept, strict=True):
            parameter.grad = gradient

    def _read(self, told: Header, call: BackwardCall, loss: Tensor | None, scale: Number) -> None:
        """Check that the ranks are at the same point, and give the loop the loss over all of them."""
        self._check.take(told)
        if loss is not None and self._strategy.sync_loss and not (call.retain_graph or loss.is_leaf or loss._is_view()):
            told.give_loss(loss, scale)

    def _facts(self) -> Facts:
        return Facts(self._job.backwards, self._steps, self._session.share.position)

    @hookimpl
    def session_end(self, error: BaseException | None) -> None:
        if error is None:
            self._check.finish()
            if not self._job.backwards:
                refuse_unlike(self._session, self.trained.parameters)

    def _drop_plans(self) -> None:
        for plan in self._plans.values():
            plan.close()
        self._plans.clear()

    def _after_sync(self) -> None:
        if not self._session.random.is_split:
            self._split_random()
        self._quiet_backwards += 1
        if self._quiet_backwards == DISCOVERY_BACKWARDS and self.trained.has_optimizers:
            self._session.end_discovery()

    def _look_at(self, loss: Tensor) -> str:
        """What there is to say about the first loss."""
        return reductions.look(loss, self._strategy.loss_reduction)

    def _split_random(self) -> None:
        """From the first backward on, each rank draws random numbers of its own."""
        self._session.random.split(self._session.rank)

    def _count(self, call: BackwardCall) -> Count:
        """What this rank's gradient counts."""
        return self._counted.of(call, bool(self._local))

    def _plan(self) -> Plan:
        key = tuple([parameter.requires_grad for parameter in self.trained.parameters])
        plan = self._plans.get(key)
        if plan is None:
            trained = [parameter for parameter in self.trained.parameters if parameter.requires_grad]
            models = self.trained.models(trained)
            self._buffers = Buffers(models)
            plan = self._plans[key] = Plan(self._session, trained, self.trained.holders(trained), _sparse(models), self._strategy.ddp_options())
        return plan

    # Step ------------------------------------------------------------------------------------------------------

    @hookimpl(trylast=True)
    def parameters_added(self, optimizer: Optimizer | None) -> None:
        if optimizer is not None and self._session.captures(optimizer):
            self._assigned.watch(optimizer, self._shared_by(optimizer))

    @hookimpl
    def before_optimizer_step(self, optimizer: Optimizer, closure: Any) -> None:
        """Gradients that did not come through a synchronised backward (``autograd.grad``, ``no_sync``) are averaged here."""
        fresh = self._synced_at.get(optimizer, 0) != self._job.backwards
        self._synced_at[optimizer] = self._job.backwards
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]} & self._local if self._local else None
        if closure is None and self._session.captures(optimizer) and (held or not fresh or self._assigned.found(optimizer)):
            self._average(optimizer, 1.0 if held else self._session.share.weight)
            self._local -= held or set()
            self._assigned.synchronised()

    def _average(self, optimizer: Optimizer, weight: float) -> None:
        shared = self._shared_by(optimizer)
        if shared:
            average(shared, weight)

    def _shared_by(self, optimizer: Optimizer) -> list[Tensor]:
        """The optimizer's parameters, but those which are this rank's own."""
        return [parameter for group in optimizer.param_groups for parameter in group["params"] if parameter not in self.trained.own]

    @hookimpl
    def after_optimizer_step(self, optimizer: Optimizer) -> None:
        self._steps += 1

    @hookimpl
    def scheduler_metric(self, metric: Any) -> Any:
        return self._session.reduce(metric)

    # Explain ---------------------------------------------------------------------------------------------------

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]]:
        notes = [note for note in (self._loss_note, self._counted.note) if note]
        if self._job.backwards and not self._session.share.indices and self._session.world.data.parts > 1:
            notes.append(NOT_DIVIDED)
        return {"notes": notes} if notes else {}


def _scalar(call: BackwardCall) -> Tensor | None:
    loss = call.loss
    return loss if isinstance(loss, Tensor) and loss.dim() == 0 and loss.is_floating_point() else None


def _sparse(models: list[Module]) -> set[int]:
    """The ids of parameters that belong to an Embedding with sparse gradients."""
    modules = [module for model in models for module in model.modules() if getattr(module, "sparse", False) is True]
    return {id(module._parameters.get("weight")) for module in modules}
