"""The strategy ``fsdp``, by torch's ``fully_shard``.

It divides parameters, gradients and optimizer states over ranks."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn
from torch.nn import Module
from torch.optim import Optimizer
from torchbus import objects
from torchbus.plugin import Context, World, expect, hookimpl

from torchbus_sharded import events, meta, wrapping
from torchbus_sharded.backward import BackwardWeights, ShardedBackward
from torchbus_sharded.meta import MetaModules, ParamInit
from torchbus_sharded.models import ShardedModels
from torchbus_sharded.optimizers import parameters_of
from torchbus_sharded.options import ShardingOptions
from torchbus_sharded.unmanaged import UnmanagedTensors
from torchbus_strategy import groups, sharding
from torchbus_strategy.strategy import Strategy

EXACT_SINCE = "2.11"
"""Gloo can't average in 2.7, and 2.8 reduces numbers of 64 bits as 32. 2.9 and 2.10: not tried."""


class FSDP(Strategy):
    """Fully sharded data parallel: shards parameters, gradients and optimizer states over ranks.

    A unit is gathered for its forward and its backward, while the one before it computes.

    Args:
        auto_wrap_policy: the units: "auto" (repeated blocks), module classes or their names,
            an int (modules with at least this number of parameters), or None (the whole model is
            one unit).
        reshard_after_forward: whether a unit is released between its forward and its backward.
            False needs more memory and less traffic. None releases all units but the outermost.
        mixed_precision: the dtype in which units compute, "bf16" or "16". Gradients are reduced in
            float32. None changes nothing.
        cpu_offload: whether the shards are in host memory.
        hybrid: whether to shard over the ranks of a node, and to replicate over nodes.
        tp: how many ranks share each layer of ``plan``, as for tp. These ranks see the same
            batches, and fsdp shards over the other ranks. None divides no layers.
        forward_methods: names of methods other than ``forward`` that use parameters, such as
            ("loss", "generate").
        param_init_fn: a function that initialises the tensors of a module. It is called with each
            module of a model on the meta device that owns tensors. None calls the module's
            reset_parameters().
        loss_reduction: whether losses are a "mean" or a "sum" over samples. "auto" reads this from
            the loss's graph, and assumes a mean if the graph does not show it.
        loss_weight: the weight of a rank's gradient in the mean: "auto", "samples" or "tokens", as
            for ddp.
        backend: the torch.distributed backend. None means nccl for GPUs, and gloo for CPUs.

    Source: Zhao et al., PyTorch FSDP, VLDB 2023; torch.distributed.fsdp.fully_shard.
    """

    name = "fsdp"
    gathers = True
    divides_states = True
    declares_events = events

    def __init__(
        self,
        *,
        auto_wrap_policy: wrapping.Policy = "auto",
        reshard_after_forward: bool | None = None,
        mixed_precision: Literal["bf16", "16"] | None = None,
        cpu_offload: bool = False,
        hybrid: bool = False,
        tp: int | None = None,
        forward_methods: tuple[str, ...] = (),
        param_init_fn: ParamInit | None = None,
        loss_reduction: Literal["auto", "mean", "sum"] = "auto",
        loss_weight: Literal["auto", "samples", "tokens"] = "auto",
        backend: str | None = None,
    ) -> None:
        super().__init__(backend=backend, loss_reduction=loss_reduction, loss_weight=loss_weight)
        expect(
            "forward_methods", forward_methods, (tuple, list), "names of methods, such as ('loss',)"
        )
        self.sharding = ShardingOptions(
            auto_wrap_policy,
            reshard_after_forward,
            mixed_precision,
            cpu_offload,
            hybrid,
            tuple(forward_methods),
            param_init_fn,
            tp,
        )
        if tp is not None:
            self.companions = (*self.companions, "tensor_layers")

    @hookimpl
    def launch(self, session: Context) -> World:
        """Start the ranks. With ``hybrid``, parameters are sharded over the ranks of a node."""
        sharding.refuse_older_torch(session, "fsdp", EXACT_SINCE)
        if session.launcher.ranks_asked_for > 1:
            self.sharding.check_ranks(session.launcher.ranks_asked_for)
        world = session.start_ranks(self.form)
        return groups.arrange_ranks(session, **self.sharding.sizes(world))

    def start_alone(self, session: Context) -> None:
        """Initialise models on the meta device."""
        models = SingleRank(session, self.sharding.param_init_fn)
        session.bus.register(models, "fsdp.single_rank")
        models.fill_made_before()

    def start(self, session: Context) -> None:
        """Shard the models, and begin to reduce their gradients."""
        self.sharding.check_device(session.device)
        self.sharding.check_mesh(session.world)
        sharding.forget_other_meshes(session)
        models = ShardedModels(session, self.sharding)
        counts = BackwardWeights(session, self.loss_reduction, self.loss_weight, models.agreement)
        session.bus.register(models, "fsdp.models")
        unmanaged = UnmanagedTensors(session, self.sharding.forward_methods)
        session.bus.register(unmanaged, "fsdp.unmanaged")
        backward = ShardedBackward(session, models, unmanaged, counts)
        session.bus.register(backward, "fsdp.backward")
        models.divide_made_before()

    def how(self) -> str:
        """Return the text of ``explain()`` after the strategy's name and backend."""
        when = (
            "after its backward"
            if self.sharding.reshard_after_forward is False
            else "after its forward and its backward"
        )
        tp = self.sharding.tp
        layers = f"; {tp} ranks share each layer of the plan" if tp else ""
        return (
            "parameters, gradients and optimizer states are divided over ranks; a unit is gathered"
            f" while the one before it computes, and released {when}{layers}"
        )


class SingleRank:
    """Initialises models on the meta device, at the events at which ``ShardedModels`` would act."""

    def __init__(self, session: Context, param_init_fn: ParamInit | None) -> None:
        self._session = session
        self._param_init_fn = param_init_fn
        self._replaced: dict[int, nn.Parameter] = {}
        self._old: list[Tensor] = []
        session.on_close.callback(self._replaced.clear)
        session.on_close.callback(self._old.clear)

    @hookimpl(tryfirst=True)
    def parameters_added(self, optimizer: Optimizer | None, parameters: list[Tensor]) -> None:
        if optimizer is None or not self._session.captures(optimizer):
            return
        new = [one for one in parameters if one.is_meta and id(one) not in self._replaced]
        for model in objects.models_of(new):
            self._fill(model)
        sharding.swap(optimizer, self._replaced)

    @hookimpl
    def model_found(self, model: Module, calling: bool) -> None:
        if self._session.captures(model) and not calling:
            self._fill(model)

    def fill_made_before(self) -> None:
        for optimizer in objects.optimizers():
            self.parameters_added(optimizer, parameters_of(optimizer))

    def _fill(self, model: Module) -> None:
        modules = MetaModules(model, self._param_init_fn)
        if not modules:
            return
        before = meta.named(model)
        with self._session.random.order():
            modules.fill(self._session.device, self._session.device, lambda _: None)
        after = meta.named(model)
        self._replaced |= {id(before[name]): after[name] for name in before if before[name].is_meta}
        self._old += before.values()
