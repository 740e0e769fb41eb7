"""The strategy ``fsdp``: parameters, gradients and optimizer states divided over ranks, by torch's ``fully_shard``."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy
from torchbus.plugin import Context, UsageError, World, check_loss_weight, expect, gloo_on_loopback, hookimpl

from torchbus_sharded.engine import wrapping
from torchbus_sharded.engine.fsdp2 import forget_meshes
from torchbus_sharded.engine.meta import ParamInit
from torchbus_sharded.fsdp.backward import ShardedBackward
from torchbus_sharded.fsdp.loss_counts import Counted
from torchbus_sharded.fsdp.models import ShardedModels
from torchbus_sharded.fsdp.single_rank import OneRank

DTYPES = {"bf16": torch.bfloat16, "16": torch.float16}

LOSS_REDUCTIONS = ("mean", "sum")


class FSDP:
    """Each rank keeps its part of every parameter, with gradient and optimizer state; a unit is gathered for its forward and its backward, while
    the one before it computes.

    Args:
        auto_wrap_policy: the units: "auto" (repeated blocks), module classes, modules of so many parameters or more, or None (the whole
            model is one unit).
        reshard_after_forward: False keeps a unit gathered from forward to backward: more memory, less traffic; None: the outermost alone.
        mixed_precision: "bf16" or "16": the dtype of gathered parameters and of gradients on their way; None: as they are.
        cpu_offload: keep the parts in host memory.
        hybrid: divide over the ranks of a node, replicate over nodes.
        forward_methods: names of methods other than ``forward`` that use parameters, such as ("loss", "generate").
        param_init_fn: a function that gives the tensors of a module values, called with each module of a model on the meta device that has some
            of its own; None: the module's reset_parameters().
        loss_reduction: "mean" if the loss is a mean over samples, "sum" if it is a sum.
        loss_weight: what a rank's gradient counts in the mean: "auto", "samples" or "tokens", as for ddp.
        backend: torch.distributed backend; None: nccl for GPUs, gloo for CPU.

    Source: Zhao et al., PyTorch FSDP, VLDB 2023; torch.distributed.fsdp.fully_shard.
    """

    owns = ("strategy",)
    divides_data = True
    companions = ("sampler", "process_group")

    def __init__(
        self, *, auto_wrap_policy: wrapping.Policy = "auto", reshard_after_forward: bool | None = None, mixed_precision: str | None = None,
        cpu_offload: bool = False, hybrid: bool = False, forward_methods: tuple[str, ...] = (),
        param_init_fn: ParamInit | None = None, loss_reduction: str = "mean", loss_weight: str = "auto",
        backend: str | None = None,
    ) -> None:  # fmt: skip
        wrapping.check(auto_wrap_policy)
        expect("reshard_after_forward", reshard_after_forward, (bool, type(None)), "True, False or None")
        for name, value in {"cpu_offload": cpu_offload, "hybrid": hybrid}.items():
            expect(name, value, bool, "True or False")
        if mixed_precision not in (None, *DTYPES):
            raise UsageError(f"mixed_precision={mixed_precision!r} is unknown: use 'bf16', '16' or None")
        if loss_reduction not in LOSS_REDUCTIONS:
            raise UsageError(f"loss_reduction={loss_reduction!r} is unknown: use 'mean' or 'sum'")
        check_loss_weight(loss_weight)
        expect("forward_methods", forward_methods, (tuple, list), "names of methods, such as ('loss',)")
        if param_init_fn is not None and not callable(param_init_fn):
            raise UsageError(f"param_init_fn={param_init_fn!r}: it must be a function of a module, or None")
        self.policy = auto_wrap_policy
        self.reshard_after_forward = reshard_after_forward
        self.mixed_precision = mixed_precision
        self.cpu_offload = cpu_offload
        self.hybrid = hybrid
        self.forward_methods = tuple(forward_methods)
        self.param_init_fn = param_init_fn
        self.loss_reduction = loss_reduction
        self.loss_weight = loss_weight
        self.backend = backend

    @hookimpl
    def launch(self, session: Context) -> World:
        return session.start_ranks()

    @hookimpl
    def session_start(self, session: Context) -> None:
        if session.world_size == 1:
            alone = OneRank(session, self.param_init_fn)
            session.bus.register(alone, "fsdp.alone")
            return alone.fill_made_before()
        if not torch.distributed.is_initialized():
            raise UsageError("strategy='fsdp' needs a process group, which torchbus-ddp makes: pip install torchbus-ddp")
        if self.cpu_offload and session.device.type == "cpu":
            raise UsageError("cpu_offload=True needs GPUs: on CPU the parts are in host memory as it is. Leave it out")
        from torchbus_sharded.fsdp.unmanaged import LooseTensors  # the rest of the package can be imported without torchbus-ddp

        forget_meshes()
        # A process that is forked later would wait for the threads of this block's process group, which it does not have.
        session.on_close.callback(forget_meshes)
        models = ShardedModels(session, self)
        self._counted = Counted(session, self.loss_reduction, self.loss_weight, models.agreement)
        session.bus.register(models, "fsdp.models")
        loose = LooseTensors(session, self.forward_methods)
        session.bus.register(loose, "fsdp.loose")
        session.bus.register(ShardedBackward(session, models, loose, self._counted), "fsdp.backward")
        models.divide_made_before()

    def mesh(self, session: Context) -> DeviceMesh:
        """One dimension, or nodes x ranks of a node."""
        with gloo_on_loopback(session.world.one_host):
            if not self.hybrid:
                return init_device_mesh(session.device.type, (session.world_size,))
            shape = (session.world.num_nodes, session.world.local_world_size)
            return init_device_mesh(session.device.type, shape, mesh_dim_names=("replicate", "shard"))

    def engine_options(self, outputs: torch.dtype | None) -> dict[str, Any]:
        """What ``fully_shard`` is told. ``outputs``: what a model returns under mixed precision; its inner units pass on what they compute."""
        options: dict[str, Any] = {"reshard_after_forward": self.reshard_after_forward}
        if self.mixed_precision is not None:
            dtype = DTYPES[self.mixed_precision]
            options["mp_policy"] = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, output_dtype=outputs)
        if self.cpu_offload:
            options["offload_policy"] = CPUOffloadPolicy()
        return options

    @hookimpl
    def explain_lines(self, session: Context) -> dict[str, list[str]]:
        if session.world_size == 1:
            return {"strategy": ["fsdp on one rank: nothing to divide"]}
        when = "after its backward" if self.reshard_after_forward is False else "after its forward and its backward"
        gathered = "gathered while the one before it computes, and let go"
        line = f"fsdp: parameters, gradients and optimizer states are divided over ranks; a unit is {gathered} {when}"
        return {"strategy": [line], "notes": [note for note in [self._counted.losses.note] if note]}
