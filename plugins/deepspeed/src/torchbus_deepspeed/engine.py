"""A DeepSpeed engine for one model of one optimizer."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle
from torchbus.plugin import Context

from torchbus_deepspeed import _compat
from torchbus_deepspeed.layout import Gather, layout_of
from torchbus_deepspeed.optimizers import Kernel
from torchbus_deepspeed.partitioned import AccessGuard
from torchbus_deepspeed.queue import Queue
from torchbus_deepspeed.shadow import ForwardWrites, shadow_of
from torchbus_launch.relaunch import environment_variables
from torchbus_strategy.internal import making_internal


@torch.no_grad()
def end(engine: ReducingEngine, gather: Gather) -> None:
    """Destroy an engine, and make its model's parameters and gradients whole.

    All ranks must call this.
    """
    gradients = engine.whole_gradients(gather)
    parameters = list(engine.model.parameters())
    if engine.stage == 3:
        values = [_compat.whole_parameter(one) for one in parameters]
    else:
        values = [one.detach().clone() for one in parameters]
    if engine.watch is not None:
        engine.watch.end()
    if engine.writes is not None:
        engine.writes.end()
    engine.ds.destroy()
    for parameter, value in zip(parameters, values, strict=True):
        _compat.make_plain(parameter, value)
        if id(parameter) in gradients:
            parameter.grad = gradients[id(parameter)].to(parameter.dtype)
    for module in engine.model.modules():
        _compat.unwrap_parameters(module)
    engine.traces.remove()
    if engine.waits is not None:
        engine.waits.remove()


class SessionEngines(Protocol):
    """The engines of a session."""

    session: Context

    def __iter__(self) -> Iterator[ReducingEngine]: ...

    def of(self, optimizer: Optimizer) -> list[ReducingEngine]: ...


class ReducingEngine:
    """A DeepSpeed engine that only reduces gradients, shards states and steps.

    ``parameters`` are the parameters that it trains, and ``layout`` has the places of their
    elements. ``masters`` are this rank's flat shards, one for each group. ``gradients`` are tensors
    of the masters' shapes that use no memory; the ``grad`` of each is this rank's shard of the
    averaged gradients, without the loss scale. ``kernel`` steps in place of the loop's class.
    """

    def __init__(
        self,
        session: Context,
        stage: int,
        config: Mapping[str, Any],
        model: Module,
        of: Optimizer,
        kernel: Kernel | None = None,
    ) -> None:
        mine = {id(parameter) for parameter in model.parameters()}
        self._optimizer = weakref.ref(of)
        self.model, self.stage, self.kernel = model, stage, kernel
        self.shadow = shadow_of(of, mine) if kernel is None else kernel.shadow_of(of, mine)
        self._indices = [
            index for index, group in enumerate(self.shadow.param_groups) if group["params"]
        ]
        self.ds = self._initialized(session, config)
        self.zero: Any = self.ds.optimizer
        _compat.remove_hooks(self.zero)
        self._lay_out(session)
        self._nodes = [_compat.gradient_node(one, stage) for one in self.parameters]
        at_once = stage >= 2 or bool(self.zero.overlap_comm)
        self.queue = Queue(self.parameters[::-1], self._take, at_once)
        self.has_stepped = self.is_stale = False
        self.watch: AccessGuard | None = None
        self.writes = ForwardWrites(model) if stage == 3 else None
        self.reached: set[int]
        """The ids of the parameters that some rank has reached since gradients were cleared."""
        _compat.share_memory(self.zero, stage)
        self.take_gradients({id(one): one.grad for one in self.parameters if one.grad is not None})
        for parameter in self.parameters:
            parameter.grad = None

    def _lay_out(self, session: Context) -> None:
        """Find the parameters and this rank's shards of them."""
        self.layout = layout_of(self.zero, self.stage, session.rank)
        held = chain.from_iterable(_compat.groups_of(self.zero, self.stage))
        order = {id(one): number for number, one in enumerate(self.model.parameters())}
        self.parameters = sorted(held, key=lambda one: order[id(one)])
        self.masters = _compat.masters_of(self.zero, self.stage)
        self.gradients = [_holder(master, session.device) for master in self.masters]

    def _initialized(self, session: Context, config: Mapping[str, Any]) -> Any:
        """Make DeepSpeed's engine, and record its changes to the model, to undo them at the end."""
        self.traces = Traces(self.model)
        self.waits = Waits(session, self.model) if self.stage == 3 else None
        place = {"RANK": session.rank, "WORLD_SIZE": session.world_size}
        with environment_variables(place), making_internal():
            engine, *_ = _compat.deepspeed().initialize(
                model=self.model,
                optimizer=self.shadow,
                config=dict(config),
                dist_init_required=False,
            )
        self.traces.note()
        if self.waits is not None:
            self.waits.end()
        _compat.hide_model(engine, self.model)
        _compat.keep_optimizer(engine.optimizer, self.shadow)
        engine.set_gradient_accumulation_boundary(True)
        return engine

    def take_gradients(self, given: Mapping[int, Tensor]) -> None:
        """Set whole gradients, by the ids of parameters. They must be equal on all ranks."""
        self.clear()
        inside = [one for one in self.parameters if id(one) in given]
        for number in {self.layout[one].group for one in inside}:
            holder = self.gradients[number]
            holder.grad = torch.zeros(holder.shape, device=holder.device)
        flats = [holder if holder.grad is None else holder.grad for holder in self.gradients]
        for parameter in inside:
            self.layout.put(parameter, given[id(parameter)], flats)
            self.reached.add(id(parameter))

    def whole_gradients(self, gather: Gather) -> dict[int, Tensor]:
        """Return whole gradients, by the ids of the parameters that some rank has reached.

        They have the parameters' shapes. All ranks must call this.
        """
        flats = [holder.grad for holder in self.gradients]
        reached = [one for one in self.parameters if id(one) in self.reached]
        return {id(one): whole for one, whole in self.layout.whole(reached, flats, gather)}

    @property
    def optimizer(self) -> Optimizer | None:
        """The loop's optimizer, or None if it no longer exists."""
        return self._optimizer()

    @property
    def loss_scale(self) -> float:
        """The loss scale by which DeepSpeed divides gradients; 1.0 except for fp16."""
        return float(self.zero.loss_scale)

    def computing(self) -> AbstractContextManager[None]:
        """Context in which torch and DeepSpeed, but not the loop, may use empty parameters."""
        return nullcontext() if self.watch is None else self.watch.paused()

    # Backward ------------------------------------------------------------------------------------

    def announced(self) -> set[int]:
        """Return the ids of the parameters that the graph about to run will reach."""
        return {
            id(one)
            for one, node in zip(self.parameters, self._nodes, strict=True)
            if _compat.will_execute(node)
        }

    def begin(self, wanted: set[int], announced: set[int], counts: bool) -> None:
        """Called when a graph begins to run. For the arguments, see ``Queue.open``."""
        _compat.begin_backward(self.zero, self.stage)
        self.queue.open(wanted, announced, counts)

    def finish(self, wanted: set[int], scale: float) -> None:
        """Reduce the remaining gradients, and store the averages. All ranks must call this.

        ``scale`` is the factor by which all gradients were multiplied.
        """
        self.queue.close()
        self.reached |= wanted
        self.is_stale = self.has_stepped
        _compat.end_backward(self.ds, self.zero)
        for number, holder in enumerate(self.gradients):
            holder.grad = self._averaged(number).to(holder.dtype)
            if scale != 1.0:
                holder.grad.div_(scale)
        grads = [holder.grad for holder in self.gradients]
        for parameter in self.parameters:
            parameter.grad = None
            if id(parameter) not in wanted:
                for view in self.layout.views(parameter, grads):
                    view.zero_()

    def written(self) -> int:
        """Return a checksum of what forwards have written to parameters since the last call."""
        return 0 if self.writes is None else self.writes.digest.take()

    def recover(self) -> None:
        """Called when the graph has failed. Frees the parameters that stage 3 has gathered."""
        if self.stage == 3:
            _compat.free_parameters(self.zero, self.model)

    def _take(self, parameter: Tensor) -> None:
        _compat.take_gradient(self.zero, self.stage, parameter, self.layout[parameter].group)

    def _averaged(self, number: int) -> Tensor:
        """Return this rank's averaged gradients of a group, on the device.

        If the group is offloaded, ZeRO stores them with the shard.
        """
        gradient = self.masters[number].grad
        if self.is_offloaded and gradient is not None:
            return gradient.detach().to(self.gradients[number].device, copy=True)
        return _compat.averaged(self.zero, number)

    @property
    def is_offloaded(self) -> bool:
        offload = self.zero.offload_optimizer if self.stage == 3 else self.zero.cpu_offload
        return bool(offload)

    # Step ----------------------------------------------------------------------------------------

    def step(self) -> None:
        """Run DeepSpeed's step with the loop's hyperparameters. All ranks must call this."""
        optimizer = self.optimizer
        assert optimizer is not None
        for index, group in zip(self._indices, self.shadow.param_groups, strict=True):
            given = optimizer.param_groups[index].items()  # by the loop, or a scheduler
            group.update({name: value for name, value in given if name != "params"})
        _compat.take_changes(self.zero, self.stage)
        scale = self.loss_scale
        for number, holder in enumerate(self.gradients):
            gradient = torch.zeros_like(holder) if holder.grad is None else holder.grad
            self._give(number, gradient * scale if scale != 1.0 else gradient)
        self.ds.step()
        self.has_stepped = True

    def _give(self, number: int, gradient: Tensor) -> None:
        master = self.masters[number]
        if not self.is_offloaded:
            _compat.give_averaged(self.zero, number, gradient)
        elif master.grad is None:
            master.grad = gradient.to(master.device, copy=True)
        else:
            master.grad.copy_(gradient)

    @property
    def has_gradients(self) -> bool:
        return any(holder.grad is not None for holder in self.gradients)

    def clear(self) -> None:
        """Called at the loop's ``zero_grad``."""
        for holder in self.gradients:
            holder.grad = None
        self.has_stepped = self.is_stale = False
        self.reached = set()

    def clear_some(self, parameters: Sequence[Tensor]) -> None:
        """Called when the loop has cleared the gradients of a part of the model."""
        grads = [holder.grad for holder in self.gradients]
        for parameter in parameters:
            self.reached.discard(id(parameter))
            for view in self.layout.views(parameter, grads):
                view.zero_()


def _holder(master: Tensor, device: torch.device) -> Tensor:
    return torch.zeros(1, dtype=torch.float32, device=device).expand(master.numel())


Thing = Module | Tensor
LATER = {"grad_accum", "ds_grad_is_ready"}


class Traces:
    """Records the changes that are made to a model between ``__init__`` and ``note``."""

    def __init__(self, model: Module) -> None:
        self._things: list[Thing] = [*model.modules(), *model.parameters()]
        self._attributes = [set(vars(thing)) for thing in self._things]
        self._tables = [
            table for module in model.modules() for table in _compat.hook_tables(module)
        ]
        self._hooks = [set(table) for table in self._tables]

    def note(self) -> None:
        """Called after the engine was made."""
        self._attributes = [
            set(vars(thing)) - before | LATER
            for thing, before in zip(self._things, self._attributes, strict=True)
        ]
        pairs = zip(self._tables, self._hooks, strict=True)
        self._hooks = [set(table) - old for table, old in pairs]

    def remove(self) -> None:
        """Undo the recorded changes that still exist."""
        for thing, names in zip(self._things, self._attributes, strict=True):
            for name in names & vars(thing).keys():
                delattr(thing, name)
        for table, keys in zip(self._tables, self._hooks, strict=True):
            for key in keys & table.keys():
                del table[key]


class Waits:
    """Reports to the guard in which layer's forward this rank waits for its parameters.

    Created before DeepSpeed adds its hooks to the model. ``end`` is called after that, so that
    DeepSpeed's hooks run in between.
    """

    def __init__(self, session: Context, model: Module) -> None:
        assert session.job is not None
        self._job = session.job
        self._named = [
            (name or type(model).__name__, module)
            for name, module in model.named_modules()
            if _compat.direct_parameters(module)
        ]
        self._handles: list[RemovableHandle] = []
        for name, module in self._named:
            self._begin(f"the forward of {name}", module)

    def _begin(self, what: str, module: Module) -> None:
        def begin(module: Module, inputs: object) -> None:
            self._job.wait_in(what)

        self._handles.append(module.register_forward_pre_hook(begin))

    def end(self) -> None:
        """Add the hooks that run when DeepSpeed's hooks have gathered a layer's parameters."""

        def go_on(module: Module, inputs: object) -> None:
            self._job.go_on()

        for _, module in self._named:
            self._handles.append(module.register_forward_pre_hook(go_on))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
