"""The strategy ``ddp``."""

from __future__ import annotations

import os
from typing import Any

import torch
from torchbus.plugin import Context, UsageError, World, check_loss_weight, expect, hookimpl, threads_per_rank, warn

from torchbus_ddp import events
from torchbus_ddp.backward.reducer import HAS_INIT_SYNC
from torchbus_ddp.backward.sync import GradientSync
from torchbus_ddp.checks.divergence import Watch
from torchbus_ddp.checks.repeated_work import RepeatedWork
from torchbus_ddp.checks.replicas import ReplicaWatch
from torchbus_ddp.process_group import opening as group

NO_SAMPLER = "loaders are not divided: that is done by torchbus-sampler, which is not installed: pip install torchbus-sampler"
LOSS_REDUCTIONS = ("mean", "sum")


class DDP:
    """Each rank trains on its share of the data; gradients are averaged, weighted by samples.

    Args:
        backend: torch.distributed backend; "nccl" for GPUs and "gloo" for CPU if it is None and TORCHBUS_BACKEND is
            not set.
        bucket_cap_mb: size of a gradient bucket in MiB, as in DistributedDataParallel.
        loss_reduction: "mean" if the loss is a mean over samples, "sum" if it is a sum.
        loss_weight: what a rank's gradient counts in the mean. "auto": what the loss's graph says that it is a mean of (targets that are not
            ignored, elements behind a mask), else samples; "samples"; "tokens": as "auto", and a loss that doesn't tell is refused.
        sync_loss: after ``backward`` the loss tensor holds the mean (sum) over all ranks.
        sync_batchnorm: BatchNorm computes its statistics over all ranks (GPUs only: torch's SyncBatchNorm).

    Source: Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training, VLDB 2020.
    """

    name = "ddp"
    form: str | None = None
    owns = ("strategy",)
    divides_data = True
    companions: tuple[str, ...] = ("sampler",)
    declares_events = events

    def __init__(
        self,
        *,
        backend: str | None = None,
        bucket_cap_mb: float = 25.0,
        loss_reduction: str = "mean",
        loss_weight: str = "auto",
        sync_loss: bool = True,
        sync_batchnorm: bool = False,
    ) -> None:
        if backend is not None:
            expect("backend", backend, str, "the name of a torch.distributed backend")
        expect("bucket_cap_mb", bucket_cap_mb, (int, float), "a number of MiB")
        if not bucket_cap_mb > 0:
            raise UsageError(f"bucket_cap_mb={bucket_cap_mb}: a bucket must hold something")
        expect("sync_loss", sync_loss, bool, "True or False")
        expect("sync_batchnorm", sync_batchnorm, bool, "True or False")
        if loss_reduction not in LOSS_REDUCTIONS:
            raise UsageError(f"loss_reduction={loss_reduction!r} is unknown: use 'mean' or 'sum'")
        check_loss_weight(loss_weight)
        self.backend = backend or os.environ.get("TORCHBUS_BACKEND") or None
        self.bucket_cap_mb = bucket_cap_mb
        self.loss_reduction = loss_reduction
        self.loss_weight = loss_weight
        self.sync_loss = sync_loss
        self.sync_batchnorm = sync_batchnorm

    def ddp_options(self) -> dict[str, Any]:
        """What DistributedDataParallel is made with. ``init_sync=False`` (where torch has it): parameters are equal already."""
        return {"bucket_cap_mb": self.bucket_cap_mb, "broadcast_buffers": False} | ({"init_sync": False} if HAS_INIT_SYNC else {})

    @hookimpl
    def launch(self, session: Context) -> World:
        return session.start_ranks(self.form)

    @hookimpl
    def session_start(self, session: Context) -> None:
        if session.world_size == 1:
            return
        if self.sync_batchnorm and session.device.type != "cuda":
            raise UsageError("sync_batchnorm=True needs GPUs: torch's SyncBatchNorm does not run on CPU")
        group.claim_device(session)
        share_cpu(session)
        self.backend = group.choose_backend(session, self.backend)
        group.open_group(session, self.backend)
        group.share_random_state(session)
        session.bus.register(self.make_sync(session), f"{self.name}.gradients")
        if session.is_main and self.divides_data and not _has_sampler(session):
            warn(NO_SAMPLER)

    def make_sync(self, session: Context) -> GradientSync:
        """The plugin that owns ``backward``. All ranks call it."""
        return GradientSync(session, self)

    def make_watch(self, session: Context) -> Watch:
        """What is looked at in every header."""
        watch = ReplicaWatch(session)
        session.bus.register(watch, "ddp.replicas")
        session.bus.register(RepeatedWork(session), "ddp.repeated")
        return watch

    @hookimpl
    def explain_lines(self, session: Context) -> dict[str, list[str]]:
        if session.world_size == 1:
            return {"strategy": [f"{self.name} on one rank: nothing to synchronise"]}
        notes = [] if _has_sampler(session) or not self.divides_data else [NO_SAMPLER]
        return {"notes": notes, "strategy": [f"{self.name} over {self.backend}: {self.words()}"]}

    def words(self) -> str:
        """How it works, for ``explain``."""
        loss = f"afterwards the loss holds the {self.loss_reduction} over ranks" if self.sync_loss else "losses stay local"
        return f"gradients are averaged by torch's DDP reducer inside backward; {loss}"


def _has_sampler(session: Context) -> bool:
    return any("order of the data" in getattr(plugin, "owns", ()) for _, plugin in session.bus.plugins())


def share_cpu(session: Context) -> None:
    """Divide the processors among the ranks of this node, unless OMP_NUM_THREADS says how many threads to use."""
    if "OMP_NUM_THREADS" in os.environ:
        return
    before = torch.get_num_threads()
    if session.world.launched_by != "fork" or session.is_main:
        torch.set_num_threads(threads_per_rank(session.world.local_world_size))
    session.on_close.callback(torch.set_num_threads, before)
