"""The strategy ``ddp``, and its process group for strategies of others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from torchbus.plugin import Context, UsageError, expect, hookimpl

from torchbus_ddp import events
from torchbus_ddp.backward.plan import Plans
from torchbus_ddp.backward.reducer import reducer_options
from torchbus_strategy import process_group
from torchbus_strategy.parameters import trained as strategy_trained
from torchbus_strategy.parameters.sync_buffers import How
from torchbus_strategy.strategy import Strategy


class ByReducer(Strategy):
    """A strategy that averages gradients in the buckets of torch's DDP reducer."""

    declares_events = events

    def __init__(
        self,
        *,
        backend: str | None = None,
        bucket_cap_mb: float = 25.0,
        loss_reduction: Literal["auto", "mean", "sum"] = "auto",
        loss_weight: Literal["auto", "samples", "tokens"] = "auto",
        sync_loss: bool = True,
        sync_batchnorm: bool = False,
        sync_buffers: How | Mapping[str, How] = "rank0",
    ) -> None:
        super().__init__(
            backend=backend,
            loss_reduction=loss_reduction,
            loss_weight=loss_weight,
            sync_loss=sync_loss,
            sync_batchnorm=sync_batchnorm,
            sync_buffers=sync_buffers,
        )
        expect("bucket_cap_mb", bucket_cap_mb, (int, float), "a number of MiB")
        if not bucket_cap_mb > 0:
            raise UsageError(f"bucket_cap_mb={bucket_cap_mb}: it must be more than 0")
        self.bucket_cap_mb = bucket_cap_mb

    def reductions(self, session: Context, trained: strategy_trained.TrainedParameters) -> Plans:
        """Torch's reducer averages gradients in buckets, while backward makes the next ones."""
        return Plans(session, trained, reducer_options(self.bucket_cap_mb))


class DDP(ByReducer):
    """Each rank trains on its share of the data. Gradients are averaged, weighted by samples.

    Args:
        backend: the torch.distributed backend. None means TORCHBUS_BACKEND if that is set, or else
            the usual backend of the device ("nccl" for CUDA, "gloo" for a CPU).
        bucket_cap_mb: size of a gradient bucket in MiB, as in DistributedDataParallel.
        loss_reduction: whether losses are a "mean" or a "sum" over samples. "auto" reads this from
            the loss's graph, and assumes a mean if the graph does not show it.
        loss_weight: what a rank's gradient counts in the mean. "auto" is what the loss is a mean
            of, as its graph shows (targets that are not ignored, elements behind a mask), or else
            samples. "samples" is always samples. "tokens" is like "auto", but refuses a loss whose
            graph shows no count.
        sync_loss: whether the loss tensor holds the mean (sum) over all ranks after ``backward``.
        sync_batchnorm: whether BatchNorm computes its statistics over all ranks (GPUs only: torch's
            SyncBatchNorm).
        sync_buffers: what all ranks have in a buffer after ``backward``. "rank0" is the value of
            rank 0. "mean" is the mean over ranks, or rank 0's value of integers. "sum" is the
            earlier value with the changes of all ranks. A dict has one of these by buffer name.

    Source: Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training, VLDB
    2020.
    """

    name = "ddp"
    engine = "gradients are averaged by torch's DDP reducer inside backward"


class DDPSpawn(DDP):
    """ddp for a decorated function, which new processes call too. It has the arguments of DDP.

    The caller's process is rank 0: its model is trained in place, and it gets the function's return
    value.
    """

    name = "ddp_spawn"
    form = "spawn"


class DDPNotebook(DDP):
    """ddp for a block in a notebook's cell. It has the arguments of DDP.

    The other ranks are forked when the block begins. They are silent, and end with the block. The
    kernel is rank 0, so its model is trained in place.
    """

    name = "ddp_notebook"
    form = "fork"


class ProcessGroup:
    """Opens torch's default process group before the strategy starts.

    Strategies that do not inherit from ``Strategy`` name it in their ``companions``. The strategy's
    attribute ``backend``, if it has one, names the backend.
    """

    @hookimpl(tryfirst=True)
    def session_start(self, session: Context) -> None:
        if session.world_size == 1:
            return
        named = [
            plugin
            for _, plugin in session.bus.plugins()
            if "strategy" in getattr(plugin, "owns", ())
        ]
        process_group.join_ranks(session, getattr(named[0], "backend", None))
