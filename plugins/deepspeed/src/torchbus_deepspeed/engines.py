"""The engines of a session, one for each model of each optimizer, made at its first forward."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle
from torchbus import objects
from torchbus.plugin import BackwardCall, Context, Unsupported, hookimpl
from torchbus.tree import map_tensors

from torchbus_deepspeed import _compat, refusals, states
from torchbus_deepspeed.config import DeepSpeedConfig
from torchbus_deepspeed.engine import ReducingEngine, SessionEngines, end
from torchbus_deepspeed.optimizers import Kernel, refuse_unless_by_element
from torchbus_deepspeed.partitioned import AccessGuard
from torchbus_deepspeed.shadow import parameters_of
from torchbus_deepspeed.states import put_states


class Clipping:
    """Clips gradients by the norm of all elements on all ranks. All ranks must clip."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    @hookimpl
    @torch.no_grad()
    def clip_gradients(
        self, parameters: list[Tensor], max_norm: float, norm_type: float
    ) -> Tensor | None:
        if not self._holds(parameters):
            return None
        parts, others = self._parts(parameters)
        norm = self._norm(parts, others, float(norm_type))
        factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        for gradient in [*parts, *others]:
            gradient.mul_(factor.to(gradient.device, gradient.dtype))
        return norm

    @hookimpl
    @torch.no_grad()
    def clip_gradient_values(self, parameters: list[Tensor], clip_value: float) -> bool | None:
        if not self._holds(parameters):
            return None
        parts, others = self._parts(parameters)
        for gradient in [*parts, *others]:
            gradient.clamp_(-clip_value, clip_value)
        return True

    def _holds(self, parameters: Sequence[Tensor]) -> bool:
        return any(one in each.layout for each in self._engines for one in parameters)

    def _parts(self, parameters: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Return this rank's pieces of the averaged gradients, and the unsharded gradients."""
        parts = [
            view
            for each in self._engines
            for one in parameters
            if one in each.layout
            for view in each.layout.views(one, [holder.grad for holder in each.gradients])
        ]
        return parts, [one.grad for one in parameters if one.grad is not None]

    def _norm(self, parts: list[Tensor], others: list[Tensor], kind: float) -> Tensor:
        device = self._engines.session.device
        mine = _norm(parts, kind, device)
        if math.isinf(kind):
            dist.all_reduce(mine, dist.ReduceOp.MAX)
            return torch.maximum(mine, _norm(others, kind, device))
        total = mine**kind
        dist.all_reduce(total)
        found: Tensor = (total + _norm(others, kind, device) ** kind) ** (1.0 / kind)
        return found


def _norm(tensors: list[Tensor], kind: float, device: torch.device) -> Tensor:
    if not tensors:
        return torch.zeros((), dtype=torch.float32, device=device)
    norms = [torch.linalg.vector_norm(tensor, kind).to(device).float() for tensor in tensors]
    found: Tensor = torch.linalg.vector_norm(torch.stack(norms), kind)
    return found


class InputCast:
    """Converts floating-point inputs of models that optimizers train. Outputs are not converted."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._known: set[int] = set()

    @hookimpl(trylast=True)
    def parameters_added(self, optimizer: Optimizer | None, parameters: list[Tensor]) -> None:
        for model in objects.models_of(parameters) if optimizer is not None else ():
            if id(model) not in self._known:
                self._known.add(id(model))
                handle = model.register_forward_pre_hook(self._convert, with_kwargs=True)
                self._engines.session.on_close.callback(handle.remove)

    def _convert(
        self, model: Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[object, dict[str, object]]:
        dtype = self._engines.config.dtype

        def convert(tensor: Tensor) -> Tensor:
            return tensor.to(dtype) if torch.is_floating_point(tensor) else tensor

        return map_tensors(args, convert), map_tensors(kwargs, convert)

    @hookimpl
    def before_backward(self, call: BackwardCall) -> None:
        scale = self._engines.loss_scale()
        if scale != 1.0:
            call.factor = call.factor * scale


class Engines:
    """Makes engines, and finds the engines of an optimizer."""

    def __init__(self, session: Context, config: DeepSpeedConfig, strategy: str) -> None:
        self.session, self.config, self.strategy = session, config, strategy
        self.has_local = False
        """Whether the last backward did not communicate, and left its gradients in ``p.grad``."""
        self._engines: list[ReducingEngine] = []
        self._pending: list[weakref.ref[Optimizer]] = []
        self._hooks: dict[int, list[RemovableHandle]] = {}
        self._adopted: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        session.on_close.callback(self._forget)

    def __iter__(self) -> Iterator[ReducingEngine]:
        return iter(self._engines)

    def of(self, optimizer: Optimizer) -> list[ReducingEngine]:
        return [each for each in self._engines if each.optimizer is optimizer]

    def loss_scale(self) -> float:
        """The scale of gradients during the reduction: 1.0 except for fp16."""
        return self._engines[0].loss_scale if self._engines else 1.0

    @hookimpl
    def parameters_added(self, optimizer: Optimizer | None, parameters: list[Tensor]) -> None:
        """Register an optimizer, whose constructor may still be adding groups."""
        if optimizer is None or not self.session.captures(optimizer):
            return
        if self.of(optimizer):
            raise Unsupported(refusals.LATE.format(self.strategy, type(optimizer).__name__))
        refusals.refuse_together(optimizer, self.strategy)
        if optimizer not in self._adopted:
            self._adopted.add(optimizer)
            self._pending.append(weakref.ref(optimizer))
            states.hook(self, optimizer)
        for model in objects.models_of(parameters):
            self._wait_for(model)

    def _wait_for(self, model: Module) -> None:
        """Make the engines of a model when it, or a part of it, is called."""
        if id(model) in self._hooks:
            return
        reference = weakref.ref(model)

        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def called(module: Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
            owner, known = reference(), set(_compat.pre_hooks(module))
            if owner is not None:
                self._make_of(owner)
            return _compat.run_pre_hooks(module, known, args, kwargs)

        self._hooks[id(model)] = [
            module.register_forward_pre_hook(called, with_kwargs=True) for module in model.modules()
        ]

    def _make_of(self, model: Module) -> None:
        """Make the engines of the optimizers that hold a model. All ranks must call this."""
        for hook in self._hooks.pop(id(model), ()):
            hook.remove()
        inside = {id(parameter) for parameter in model.parameters()}
        with torch.inference_mode(False):  # a model may be evaluated first, and trained later
            for optimizer in self._waiting():
                if any(id(parameter) in inside for parameter in parameters_of(optimizer)):
                    self._make(optimizer)

    def _waiting(self) -> list[Optimizer]:
        alive = [reference() for reference in self._pending]
        return [optimizer for optimizer in alive if optimizer is not None]

    @hookimpl(trylast=True)
    def after_optimizer_step(self, optimizer: Optimizer) -> None:
        """Make the engines of an optimizer if the loop has called only methods of its model.

        The gradients of its first step were averaged without an engine.
        """
        if optimizer in self._waiting():
            self._make(optimizer)

    def _make(self, optimizer: Optimizer) -> None:
        self._pending = [one for one in self._pending if one() not in (None, optimizer)]
        held = parameters_of(optimizer)
        trained = [parameter for parameter in held if parameter.requires_grad]
        models = [
            model
            for model in objects.models_of(trained)
            if any(one.requires_grad for one in model.parameters())
        ]
        refuse_unless_by_element(optimizer, self.strategy)
        refusals.refuse_kinds(models, trained, self.strategy)
        refusals.refuse_loose(trained, models, self.strategy, type(optimizer).__name__)
        self._end_left(models)
        refusals.refuse_shared(trained, models, self._engines, self.strategy)
        if self.config.stage == 3:
            refusals.refuse_compiled(models, self.strategy)
            refusals.refuse_partial(models, held, self.strategy, type(optimizer).__name__)
        kernel = self.config.optimizer.of(optimizer, self.session.device)
        for model in models:
            self._add(optimizer, model, kernel)
        optimizer.state.clear()

    def _add(self, optimizer: Optimizer, model: Module, kernel: Kernel | None) -> None:
        config = self.config.of_engine(optimizer, model, self.session)
        engine = ReducingEngine(self.session, self.config.stage, config, model, optimizer, kernel)
        self._engines.append(engine)
        states = {
            id(one): optimizer.state[one] for one in engine.parameters if one in optimizer.state
        }
        if states:
            put_states(engine, states)
        if engine.stage == 3:
            hook(self, engine)
            engine.watch = AccessGuard(model, self.strategy)

    def _end_left(self, models: Sequence[Module]) -> None:
        """Remove the engines of these models whose optimizer no longer exists."""
        for each in [each for each in self._engines if each.optimizer is None]:
            if any(each.model is model for model in models):
                end(each, states.gathering(self))
                self._engines.remove(each)

    def refuse_thawed(self, parameters: Sequence[Tensor]) -> None:
        """Raise Unsupported if an optimizer holds a parameter that its engine lacks.

        The parameter was frozen when the engine was made.
        """
        wanted = {id(parameter) for parameter in parameters}
        for each in self._engines:
            optimizer = each.optimizer
            for one in [] if optimizer is None else parameters_of(optimizer):
                if id(one) in wanted and not any(one in other.layout for other in self._engines):
                    raise Unsupported(refusals.THAWED.format(self.strategy))

    @hookimpl
    def session_end(self, error: BaseException | None) -> None:
        """Restore whole models and states at the end of the block."""
        refusal = refusals.translate(error, self._engines, self.strategy)
        if refusal is not None:
            raise refusal from error
        if error is None:
            for each in self._engines:
                states.give_back(self, each)
                end(each, states.gathering(self))
            self._engines.clear()

    def _forget(self) -> None:
        for hook in [hook for found in self._hooks.values() for hook in found]:
            hook.remove()
        self._hooks.clear()
        for each in self._engines:  # after an error in the block, so without a collective
            each.ds.destroy()
            if each.watch is not None:
                each.watch.end()
            if each.writes is not None:
                each.writes.end()
            if each.waits is not None:
                each.waits.remove()
        self._engines.clear()
        self._pending.clear()

    @hookimpl
    def whole_shape(self, parameter: Tensor) -> torch.Size | None:
        return _compat.shape_of(parameter) if self._engines else None

    @hookimpl
    def describe(self, thing: object) -> str | None:
        if isinstance(thing, Optimizer):
            names = {each.kernel.name for each in self.of(thing) if each.kernel is not None}
            return f"stepped by DeepSpeed's {names.pop()}" if names else None
        if not isinstance(thing, Module):
            return None
        number = sum(each.model is thing for each in self._engines)
        return f"divided by DeepSpeed, ZeRO stage {self.config.stage}" if number else None


def hook(engines: SessionEngines, engine: ReducingEngine) -> None:
    """Make state_dict and load_state_dict whole, by hooks on each module.

    The script may call these methods of a part of the model.
    """

    def gather(module: Module, state: dict[str, Any], prefix: str, metadata: object) -> None:
        if engine not in engines:
            return
        for name, parameter in _compat.direct_parameters(module).items():
            if prefix + name in state and parameter is not None:
                state[prefix + name] = _compat.whole_parameter(parameter)

    def divide(module: Module, state: dict[str, Any], prefix: str, *_: object) -> None:
        if engine not in engines:
            return
        for name, parameter in _compat.direct_parameters(module).items():
            value = state.get(prefix + name)
            if isinstance(value, Tensor) and parameter is not None:
                put(engine, parameter, value)
                state[prefix + name] = parameter.detach()

    stack = engines.session.on_close
    for module in engine.model.modules():
        stack.callback(module.register_state_dict_post_hook(gather).remove)
        stack.callback(module.register_load_state_dict_pre_hook(divide).remove)


@torch.no_grad()
def put(engine: ReducingEngine, parameter: Tensor, value: Tensor) -> None:
    """Write this rank's shard of a whole value, and DeepSpeed's float32 copy of it."""
    if value.shape != _compat.shape_of(parameter):
        return  # torch reports the error
    _compat.put_parameter(parameter, value)
    if parameter in engine.layout:
        engine.layout.put(parameter, value, engine.masters)
