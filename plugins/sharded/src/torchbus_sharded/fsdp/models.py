"""Models that are divided in place, and the optimizers that hold them."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import Module
from torch.optim import Optimizer
from torchbus.plugin import END, Context, Settings, UsageError, hookimpl, hyperparameters, inventory

from torchbus_sharded.checks.agreement import Agreement
from torchbus_sharded.checks.refusals import refuse_copies, refuse_derivatives, refuse_optimizer, translate
from torchbus_sharded.checks.stale import empty
from torchbus_sharded.checks.undivided import WholeModels
from torchbus_sharded.checks.used_parameters import Reached
from torchbus_sharded.dtensor.install import as_whole
from torchbus_sharded.engine import parameter_hooks
from torchbus_sharded.engine.forward_hooks import Passes
from torchbus_sharded.engine.fsdp2 import buffers_in, gathered_in, name_as_before, original_class, pairs_in, reduce_late
from torchbus_sharded.engine.meta import MetaModules
from torchbus_sharded.engine.unshard import make_whole
from torchbus_sharded.engine.wrapping import called_parts, units
from torchbus_sharded.fsdp.made_before import common_optimizers
from torchbus_sharded.optimizers.holders import Optimizers
from torchbus_sharded.optimizers.state_hooks import divided_states, whole_states
from torchbus_sharded.optimizers.swap import named, swap

if TYPE_CHECKING:
    from torchbus_sharded.fsdp.strategy import FSDP


class ShardedModels:
    """Divides a model when an optimizer gets its parameters, or at its first call."""

    def __init__(self, session: Context, strategy: FSDP) -> None:
        assert session.job is not None
        self._job = session.job
        self._session = session
        self._strategy = strategy
        self._mesh = strategy.mesh(session)
        self.agreement = Agreement(session)
        self.passes = Passes(session, self.agreement)
        self.reached = Reached(self.agreement)
        self._models: weakref.WeakKeyDictionary[Module, int] = weakref.WeakKeyDictionary()
        self._replaced: dict[int, nn.Parameter] = {}
        self._old: list[Tensor] = []  # kept without their values, so that no new tensor gets one of their ids
        self._optimizers = Optimizers(session, self.agreement)
        self.whole = WholeModels(session, self._models)
        session.on_close.callback(self._forget)
        as_whole(session)
        session.replace(torch.autograd, "grad", refuse_derivatives(self._models))

    @hookimpl(tryfirst=True)
    def parameters_added(self, optimizer: Optimizer | None, parameters: list[Tensor]) -> None:
        if optimizer is None or not self._session.captures(optimizer):
            return
        refuse_optimizer(optimizer)
        self._optimizers.add(optimizer)
        for model in inventory.models_of([parameter for parameter in parameters if not isinstance(parameter, DTensor)]):
            self._divide_parts(model, hyperparameters.of_optimizer(optimizer))
        swap(optimizer, self._replaced | {id(whole): part for model in self._models for whole, part in gathered_in(model)})

    @hookimpl
    def model_found(self, model: Module, calling: bool) -> None:
        """It is too late for a model whose forward has begun: it stays whole, and must not be trained."""
        if not self._session.captures(model) or not any(True for _ in model.parameters()):
            return
        if calling:
            self.whole.add(model)
        else:
            self._divide_parts(model, {})

    def gradient_holders(self) -> list[Any]:
        """This rank's parts of all parameters, which have gradients."""
        return [pair.sharded_param for model in self._models for pair in pairs_in(model)]

    def end_backward(self) -> None:
        """The engine has run. All ranks call it alike."""
        for model in self._models:
            reduce_late(model)
        self.passes.end()

    def share_buffers(self) -> None:
        """Rank 0's, on all ranks, in one broadcast for each dtype. All ranks call it."""
        held = [buffer for model in self._models for some in buffers_in(model) for buffer in some.values()]
        buffers = {id(buffer): buffer for buffer in held if buffer is not None and buffer.numel()}.values()
        for kind in dict.fromkeys((buffer.dtype, buffer.device) for buffer in buffers):
            same = [buffer for buffer in buffers if (buffer.dtype, buffer.device) == kind]
            packed = torch.cat([buffer.reshape(-1) for buffer in same])
            dist.broadcast(packed, 0)
            for buffer, part in zip(same, packed.split([one.numel() for one in same]), strict=True):
                buffer.data.copy_(part.view_as(buffer))

    def divide_made_before(self) -> None:
        """Models that were made with their optimizers before the block, wherever they are kept: their first call would be too late."""
        for optimizer in common_optimizers(self.agreement):
            self.parameters_added(optimizer, [parameter for group in optimizer.param_groups for parameter in group["params"]])

    def optimizer_settings(self) -> Settings:
        """The hyperparameters that optimizers have now."""
        return self._optimizers.settings()

    def _divide_parts(self, model: Module, made_with: Settings) -> None:
        for part in called_parts(model, self._strategy.forward_methods):
            self._divide(part, made_with)

    def _divide(self, model: Module, made_with: Settings) -> None:
        """Rank 0's values, in parts. All ranks come here alike."""
        if model in self._models or not _can_be_divided(model):
            return
        on_meta = MetaModules(model, self._strategy.param_init_fn)
        name, sizes = type(model).__name__, [parameter.numel() for parameter in model.parameters()]
        self.agreement.meet(f"dividing {name}, model {len(self._models) + 1}")
        tensors: Settings = {f"{name}: parameters": f"{sum(sizes)} numbers in {len(sizes)} tensors"}
        hyperparameters.refuse_unlike(made_with | hyperparameters.of_model(model) | tensors, self.agreement.told)
        for tensor in [*model.parameters(), *model.buffers()]:
            if not tensor.is_meta:
                dist.broadcast(tensor.data, 0)
        before = named(model)
        self._models[model] = self._shard(model)
        if on_meta:
            self._fill(model, on_meta)
        self.reached.add(model)
        self._hook(model)
        after = named(model)
        parameter_hooks.move(before, after)
        self._replaced |= {id(before[name]): after[name] for name in before}
        self._old += before.values()
        self.whole.discard(model)
        self._optimizers.add_holding(list(before.values()))
        self._optimizers.swap(self._replaced)
        for old in before.values():
            empty(old)

    def _shard(self, model: Module) -> int:
        """Returns the number of units."""
        parts = units(model, self._strategy.policy)
        dtype = next(model.parameters()).dtype
        for part in [*parts, model]:
            options = self._strategy.engine_options(dtype if part is model else None)
            fully_shard(part, mesh=self._mesh, **options)  # type: ignore[call-overload]
            self._session.on_close.callback(name_as_before(part))
        if hasattr(model, "set_reduce_scatter_unused_params"):  # newer releases of torch
            model.set_reduce_scatter_unused_params(True)  # type: ignore[operator]
        for name in self._strategy.forward_methods:
            if hasattr(model, name):
                self.passes.surround(model, name, len(self._models) + 1)
        return len(parts) + 1

    def _fill(self, model: Module, on_meta: MetaModules) -> None:
        """What the modules draw is drawn from the stream that all ranks have in common, whole, as one process would."""
        device = self._session.device
        with self._session.random.order():
            on_meta.fill(device, torch.device("cpu") if self._strategy.cpu_offload else device, lambda tensor: dist.broadcast(tensor, 0))

    def _hook(self, model: Module) -> None:
        stack = self._session.on_close
        self.passes.add(model, len(self._models))
        stack.callback(refuse_copies(model))
        for module in model.modules():
            stack.callback(module.register_state_dict_pre_hook(self._meet_to_gather).remove)
            stack.callback(module.register_state_dict_post_hook(whole_states(self._session)).remove)
            stack.callback(module.register_load_state_dict_pre_hook(divided_states).remove)

    @hookimpl(trylast=True)
    def session_end(self, error: BaseException | None) -> None:
        """Rank 0 goes on with whole models, and optimizers that hold them."""
        refusal = translate(error, self._models)
        if refusal is not None:
            raise refusal from error
        if error is None:
            self.agreement.meet("the end of the block")
            self._job.wait_in(END)  # that ranks, and nodes, gather at unlike speed is no sign of anything
            self.whole.refuse_trained()
        for model in list(self._models) if error is None else []:
            whole = make_whole(model, self._strategy.forward_methods)
            self._optimizers.swap(whole)

    def _meet_to_gather(self, model: Module, prefix: str, keep_vars: bool) -> None:
        if (not prefix or model in self._models) and self._session.gathers_states:
            self.agreement.meet(f"the state_dict of {original_class(model).__name__}")

    def _forget(self) -> None:
        self._old.clear()
        self._replaced.clear()

    @hookimpl
    def describe(self, thing: Any) -> str | None:
        if not isinstance(thing, Module):
            return None
        if thing not in self._models:
            return "whole on every rank, not synchronised: in no optimizer"
        units = self._models[thing]
        return f"divided in {units} {'units' if units > 1 else 'unit'}; each rank keeps 1/{self._mesh.size(-1)} of it"


def _can_be_divided(model: Module) -> bool:
    """Whether there is something to divide. Raises UsageError for what can't be."""
    divided = [name for name, parameter in model.named_parameters() if isinstance(parameter, DTensor)]
    if len(divided) == len(list(model.parameters())):
        return False
    if divided:
        raise UsageError(
            f"{type(model).__name__} shares {divided[0]} with another model, which is divided already: under strategy='fsdp' a parameter "
            "belongs to one model; use strategy='ddp' or 'ddp_sharded'"
        )
    sparse = next((path for path, part in model.named_modules() if getattr(part, "sparse", False)), None)
    if sparse is not None:
        raise UsageError(f"{type(model).__name__}.{sparse} has sparse gradients, which strategy='fsdp' can't divide: use sparse=False, or 'ddp'")
    return True
