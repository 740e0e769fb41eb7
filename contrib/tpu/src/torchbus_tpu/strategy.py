"""EXPERIMENTAL, never run on a TPU. The strategy ``tpu``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import Tensor
from torchbus.plugin import Context, UsageError, World, hookimpl

from torchbus_device import accelerators
from torchbus_launch.relaunch import environment_variables
from torchbus_strategy.parameters import averaging
from torchbus_strategy.strategy import Strategy

STATE = "EXPERIMENTAL, never run on a TPU"
MISSING = (
    "strategy='tpu' needs torch_tpu, which is not installed: pip install torch_tpu on a host with"
    " TPUs. This strategy is EXPERIMENTAL, never run on a TPU"
)
NO_TPU = (
    "strategy='tpu' on {}: pass accelerator='tpu'. This strategy is EXPERIMENTAL, never run on a"
    " TPU"
)


class TPU(Strategy):
    """EXPERIMENTAL, never run on a TPU. Each rank trains on one TPU, on its share of the data.

    After backward, gradients are averaged by one all-reduce of torch_tpu for each dtype.

    Args:
        backend: the torch.distributed backend. None means TORCHBUS_BACKEND, or else the one that
            torch_tpu registers.
        loss_reduction: whether losses are a "mean" or a "sum" over samples. "auto" reads this from
            the loss's graph, and assumes a mean if the graph does not show it.
        loss_weight: what a rank's gradient counts in the mean: "auto", "samples" or "tokens", as
            for ddp.
        sync_loss: whether the loss tensor holds the mean (sum) over all ranks after ``backward``.

    Raises:
        UsageError: an option has another type or value. When the ranks start: torch_tpu is not
            installed, the device is not a TPU, or a launcher has not called
            ``set_tpu_launch_env``.

    Source: https://github.com/google-pytorch/torch_tpu, release 0.2.0.
    """

    name = "tpu"
    form = "script"  # torch_tpu refuses a process that was forked after torch_tpu's start
    engine = f"{STATE}: gradients are averaged by all-reduces after backward"

    def __init__(
        self,
        *,
        backend: str | None = None,
        loss_reduction: Literal["auto", "mean", "sum"] = "auto",
        loss_weight: Literal["auto", "samples", "tokens"] = "auto",
        sync_loss: bool = True,
    ) -> None:
        super().__init__(
            backend=backend,
            loss_reduction=loss_reduction,
            loss_weight=loss_weight,
            sync_loss=sync_loss,
        )

    @hookimpl
    def launch(self, session: Context) -> World:
        if not session.launcher.has_many_ranks():
            return super().launch(session)
        if find_spec("torch_tpu") is None:
            raise UsageError(MISSING)
        if session.device.type != "tpu":
            raise UsageError(NO_TPU.format(session.device.type))
        given = ADDRESSES in os.environ
        session.on_close.enter_context(prepared(_set_launch_env(), _ranks(session)))
        world = super().launch(session)
        if world.launched_by != "session" and not given:
            raise UsageError(NOT_PREPARED.format(world.launched_by, ADDRESSES))
        return world

    @hookimpl
    def session_start(self, session: Context) -> None:
        if session.world_size > 1:
            session.on_close.enter_context(rank_environment(session.world))
            mine = torch.accelerator.current_device_index()  # a process has only one TPU
            session.change_world(device=torch.device("tpu", mine))
        super().session_start(session)

    def average(self, tensors: list[Tensor]) -> None:
        """Replace each tensor in place by its mean over ranks, in its dtype. All ranks call it."""
        averaging.mean_over(tensors)


def _set_launch_env() -> Callable[..., None]:
    """Return torch_tpu's function that sets the environment variables for the ranks of a host."""
    tpu: Any = accelerators.module("tpu")
    found: Callable[..., None] = tpu.distributed.set_tpu_launch_env
    return found


def _ranks(session: Context) -> int | None:
    """Return the number of ranks on this host, or None for one rank for each TPU."""
    if session.options["devices"] == "auto":
        return None
    return session.launcher.ranks_asked_for // int(session.options["num_nodes"])


ADDRESSES = "TORCH_TPU_SLICEBUILDER_ADDRESSES"
"""The variable with one address for each rank, which the process that starts the ranks sets."""
NOT_PREPARED = (
    "the ranks were started by {}, and {} is not set: call"
    " torch.tpu.distributed.set_tpu_launch_env() in the process that starts them"
)


@contextmanager
def prepared(set_launch_env: Callable[..., None], ranks: int | None) -> Iterator[None]:
    """Inside, the variables that ``ranks`` ranks of this host must inherit are set."""
    before = dict(os.environ)
    set_launch_env(nproc_per_node=ranks)
    made = {name: value for name, value in os.environ.items() if before.get(name) != value}
    for name in made:
        del os.environ[name]
    os.environ.update(before)
    with environment_variables(made):
        yield


def rank_environment(world: World) -> AbstractContextManager[None]:
    """Inside, torchrun's variables, which torch_tpu reads, have this rank's place."""
    return environment_variables(
        {"RANK": world.rank, "WORLD_SIZE": world.world_size, "LOCAL_RANK": world.local_rank}
    )
