"""Shards models in place, and tracks the optimizers that hold them."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import Module
from torch.optim import Optimizer
from torchbus import objects
from torchbus.plugin import Context, UsageError, hookimpl

from torchbus_launch.rank_position import END
from torchbus_sharded import meta
from torchbus_sharded._compat import (
    gathered_in,
    name_as_before,
    original_class,
    pairs_in,
    reduce_late,
)
from torchbus_sharded.agreement import Agreement
from torchbus_sharded.dtensor import as_whole
from torchbus_sharded.forward_hooks import ForwardHooks
from torchbus_sharded.meta import MetaModules
from torchbus_sharded.optimizers import ShardedOptimizers, parameters_of
from torchbus_sharded.options import ShardingOptions
from torchbus_sharded.refusals import empty, refuse_copies, refuse_optimizer, translate
from torchbus_sharded.undivided import UndividedModels, can_be_divided, refuse_unlike_dtypes
from torchbus_sharded.used_parameters import UsedParameters
from torchbus_sharded.wrapping import (
    Strides,
    called_parts,
    make_contiguous,
    make_whole,
    put_strides,
    units,
)
from torchbus_strategy import sharding
from torchbus_strategy.checks import first_steps, hyperparameters
from torchbus_strategy.checks.hyperparameters import Settings


class ShardedModels:
    """Shards a model when an optimizer gets its parameters, or at its first call."""

    def __init__(self, session: Context, options: ShardingOptions) -> None:
        assert session.job is not None
        self._job = session.job
        self._session = session
        self._options = options
        self._mesh = options.shards(session.world.mesh)
        self.agreement = Agreement(session)
        self.forwards = ForwardHooks(session, self.agreement)
        self.used = UsedParameters(self.agreement)
        self._models: weakref.WeakKeyDictionary[Module, int] = weakref.WeakKeyDictionary()
        self._strides: weakref.WeakKeyDictionary[Module, Strides] = weakref.WeakKeyDictionary()
        self._replaced: dict[int, nn.Parameter] = {}
        # these references keep ids in use, and stop a rank from freeing a model before the others
        self._alive: list[Tensor | Module] = []
        self._optimizers = ShardedOptimizers(session, self.agreement)
        self.undivided = UndividedModels(session, self._models)
        session.on_close.callback(self._alive.clear)
        session.on_close.callback(self._replaced.clear)
        as_whole(session)

    def __iter__(self) -> Iterator[Module]:
        """Iterate over the sharded models."""
        return iter(self._models)

    @hookimpl(tryfirst=True)
    def parameters_added(self, optimizer: Optimizer | None, parameters: list[Tensor]) -> None:
        if optimizer is None or not self._session.captures(optimizer):
            return
        refuse_optimizer(optimizer)
        self._optimizers.add(optimizer)
        whole = [parameter for parameter in parameters if not isinstance(parameter, DTensor)]
        for model in objects.models_of(whole):
            self._divide_parts(model, hyperparameters.of_optimizer(optimizer))
        gathered = {id(whole): part for model in self._models for whole, part in gathered_in(model)}
        sharding.swap(optimizer, self._replaced | gathered)
        parameters[:] = [self._replaced.get(id(one), one) for one in parameters]

    @hookimpl
    def model_found(self, model: Module, calling: bool) -> None:
        """Shard a model. If its forward has begun, it stays whole, and must not be trained."""
        if not self._session.captures(model) or not any(True for _ in model.parameters()):
            return
        if calling:
            self.undivided.add(model)
        else:
            self._divide_parts(model, {})

    def divide_made_before(self) -> None:
        """Shard the models that were made, with their optimizers, before the block.

        At their first call it would be too late.
        """
        for optimizer in common_optimizers(self.agreement):
            self.parameters_added(optimizer, parameters_of(optimizer))

    # For the backward ----------------------------------------------------------------------------

    def gradient_holders(self) -> list[nn.Parameter]:
        """Return this rank's shards of all parameters. The gradients are those of the shards."""
        return [pair.sharded_param for model in self._models for pair in pairs_in(model)]

    def gathered(self) -> list[Tensor]:
        """Return the whole parameters in the graph."""
        return [whole for model in self._models for whole, _ in gathered_in(model)]

    def end_backward(self) -> None:
        """Complete the engine's pending reductions. All ranks call it."""
        for model in self._models:
            reduce_late(model)
        self.forwards.end()

    def optimizer_settings(self) -> Settings:
        """Return the present hyperparameters of the optimizers."""
        return self._optimizers.settings()

    # Dividing ------------------------------------------------------------------------------------

    def _divide_parts(self, model: Module, made_with: Settings) -> None:
        for part in called_parts(model, self._options.forward_methods):
            self._divide(part, made_with)

    def _divide(self, model: Module, made_with: Settings) -> None:
        """Shard rank 0's values. All ranks call it with the same models."""
        if model in self._models or not can_be_divided(model):
            return
        first_steps.refuse_renormalised(self._session, [model])
        on_meta = MetaModules(model, self._options.param_init_fn)
        self._sync_for(model, made_with)
        for tensor in [*model.parameters(), *model.buffers()]:
            if not tensor.is_meta:
                dist.broadcast(tensor.data, 0)
        self._strides[model] = make_contiguous(model)
        before = meta.named(model)
        if self._options.tp is not None:
            divide_layers(self._session, model)
        self._alive.append(model)
        self._models[model] = self._shard(model)
        if on_meta:
            self._fill(on_meta)
        self.used.add(model)
        self._hook(model)
        self._replace(before, meta.named(model))
        self.undivided.discard(model)

    def _sync_for(self, model: Module, made_with: Settings) -> None:
        """Raise RanksDiverged, on all ranks, if the ranks are about to shard different models."""
        name, sizes = type(model).__name__, [parameter.numel() for parameter in model.parameters()]
        self.agreement.sync(f"dividing {name}, model {len(self._models) + 1}")
        tensors: Settings = {f"{name}: parameters": f"{sum(sizes)} numbers in {len(sizes)} tensors"}
        hyperparameters.refuse_unlike(
            made_with | hyperparameters.of_model(model) | tensors, self.agreement.gather_objects
        )

    def _shard(self, model: Module) -> int:
        """Shard a model, and return the number of its units."""
        parts = units(model, self._options.policy)
        refuse_unlike_dtypes(model, [*parts, model])
        dtype = next(model.parameters()).dtype
        for part in [*parts, model]:
            options = self._options.of_engine(dtype if part is model else None)
            fully_shard(part, mesh=self._mesh, **options)
            self._session.on_close.callback(name_as_before(part))
        in_newer_releases = getattr(model, "set_reduce_scatter_unused_params", lambda _: None)
        in_newer_releases(True)
        for name in dict.fromkeys(("forward", *self._options.forward_methods)):
            if hasattr(model, name):
                self.forwards.surround(model, name, len(self._models) + 1)
        return len(parts) + 1

    def _fill(self, on_meta: MetaModules) -> None:
        """Initialise whole modules with random numbers that are the same on all ranks.

        So the modules get the values that one process would give them.
        """
        device = self._session.device
        with self._session.random.order():
            on_meta.fill(
                device,
                torch.device("cpu") if self._options.cpu_offload else device,
                lambda tensor: dist.broadcast(tensor, 0),
            )

    def _hook(self, model: Module) -> None:
        stack = self._session.on_close
        self.forwards.add(model, len(self._models))
        stack.callback(refuse_copies(model))
        gather = sharding.whole_states(self._session)
        for module in model.modules():
            stack.callback(module.register_state_dict_pre_hook(self._sync_to_gather).remove)
            stack.callback(module.register_state_dict_post_hook(gather).remove)
            stack.callback(module.register_load_state_dict_pre_hook(sharding.divided_states).remove)

    def _replace(self, before: dict[str, nn.Parameter], after: dict[str, nn.Parameter]) -> None:
        """Move hooks and optimizers to the sharded parameters."""
        meta.move(before, after)
        self._replaced |= {id(before[name]): after[name] for name in before}
        self._alive += before.values()
        self._optimizers.add_holding(list(before.values()))
        self._optimizers.swap(self._replaced)
        for old in before.values():
            empty(old)

    def _sync_to_gather(self, model: Module, prefix: str, keep_vars: bool) -> None:
        if (not prefix or model in self._models) and self._session.gathers_states:
            self.agreement.sync(f"the state_dict of {original_class(model).__name__}")

    # The end -------------------------------------------------------------------------------------

    @hookimpl(trylast=True)
    def session_end(self, error: BaseException | None) -> None:
        """Leave rank 0 whole models, and optimizers that hold them."""
        refusal = translate(error, self._models)
        if refusal is not None:
            raise refusal from error
        if error is None:
            self.agreement.sync("the end of the block")
            # ranks and nodes may differ in how fast they gather the whole models
            self._job.wait_in(END)
            self.undivided.refuse_trained()
            self._leave_whole()

    def _leave_whole(self) -> None:
        optimizers = self._optimizers.alive_on_all()
        for model in list(self._models):
            replaced = make_whole(model)
            for optimizer in optimizers:
                sharding.swap(optimizer, replaced)
            put_strides(model, self._strides[model])

    @hookimpl
    def describe(self, thing: object) -> str | None:
        if not isinstance(thing, Module):
            return None
        if thing not in self._models:
            return "whole on every rank, not synchronised: in no optimizer"
        units = self._models[thing]
        return (
            f"divided in {units} {'units' if units > 1 else 'unit'}; each rank keeps"
            f" 1/{self._mesh.size(-1)} of it{self._options.share_of_layers(self._mesh)}"
        )


Form = tuple[str, tuple[tuple[int, ...], ...]]


def common_optimizers(agreement: Agreement) -> list[Optimizer]:
    """Return the optimizers in the same order on all ranks. All ranks call it.

    Optimizers that other ranks do not have, such as those of the caller's other models, are left
    out. Ranks whose optimizers have the same forms in the same order have the same optimizers, even
    if the parameters' values differ.
    """
    alive = objects.optimizers()
    agreement.sync("the optimizers made before the block")
    forms, keys = [_form(one) for one in alive], [(_form(one), _values(one)) for one in alive]
    reported = agreement.gather_objects((forms, keys))
    if (
        all(their_forms == forms for their_forms, _ in reported)
        and len({tuple(sorted(theirs)) for _, theirs in reported}) > 1
    ):
        return alive
    common = Counter(reported[0][1])
    for _, theirs in reported:
        common &= Counter(theirs)
    waiting = list(zip(keys, alive, strict=True))
    found = []
    for key in (key for key in reported[0][1] if key in common):
        place = next((index for index, (mine, _) in enumerate(waiting) if mine == key), None)
        if place is not None and common[key]:
            common[key] -= 1
            found.append(waiting.pop(place)[1])
    return found


def _form(optimizer: Optimizer) -> Form:
    return type(optimizer).__qualname__, tuple(
        tuple(parameter.shape) for parameter in parameters_of(optimizer)
    )


def _values(optimizer: Optimizer) -> tuple[str, ...]:
    """Return a checksum of each parameter, rounded to be independent of the order of sums.

    Shards of an earlier session get an empty checksum: a sum over ranks would wait for a rank that
    has released them.
    """
    return tuple(
        ""
        if one.is_meta or isinstance(one, DTensor)
        else f"{float(one.detach().double().sum()):.9e}"
        for one in parameters_of(optimizer)
    )


def divide_layers(session: Context, model: Module) -> None:
    """Let the tensor-parallel plugin divide the model.

    All ranks call it. Raises UsageError if there is no such plugin.
    """
    mesh = session.world.mesh["tp"]
    if session.bus.hook.divide_layers(model=model, mesh=mesh) is None:
        raise UsageError(
            f"tp={mesh.size()} with strategy='fsdp': no plugin divides the layers of"
            f" {type(model).__name__}: pip install torchbus-tensor-parallel"
        )
