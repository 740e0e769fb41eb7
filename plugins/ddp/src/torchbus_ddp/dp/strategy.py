"""The strategies ``dp`` and ``ddp2``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torchbus.plugin import Context, DataPlace, UsageError, World, expect, hookimpl

from torchbus_ddp.dp.exchange import MeanOverTeam
from torchbus_ddp.dp.forward import DividedForward
from torchbus_ddp.dp.team import RankGroup, divide, everyone, of_node
from torchbus_ddp.strategy import ByReducer
from torchbus_strategy import groups, options


class DP(ByReducer):
    """Every rank sees the whole batch; forward is divided, and the loss is computed on all outputs.

    The outermost forward of each model splits its inputs over the ranks, computes this rank's rows,
    and gathers the outputs with their gradients. So the batch size stays the same, and losses
    between samples see all of them. Batches that the loop makes itself are divided too.

    Args:
        batch_dim: the dimension of inputs and outputs in which samples are counted. None means 0,
            and refuses models that may have time in dim 0.
        loss_reduction: whether a number that forward returns is a "mean" or a "sum" over samples.
            None means that this is unknown: every rank computes such a forward whole.
        backend, bucket_cap_mb, loss_weight, sync_batchnorm: as for ddp.

    Source: torch.nn.DataParallel, with one process per device in place of its threads.

    Raises:
        UsageError: an option has another type or value.
    """

    name = "dp"
    engine = (
        "every rank has the whole batch, computes its rows of each forward, and gathers the"
        " others'; the loss is that of the whole batch"
    )
    divides_data = False
    companions: tuple[str, ...] = ()

    def __init__(
        self,
        *,
        batch_dim: int | None = None,
        loss_reduction: Literal["mean", "sum"] | None = None,
        loss_weight: Literal["auto", "samples", "tokens"] = "auto",
        backend: str | None = None,
        bucket_cap_mb: float = 25.0,
        sync_batchnorm: bool = False,
    ) -> None:
        expect("batch_dim", batch_dim, (int, type(None)), "the number of a dimension, from 0")
        if batch_dim is not None and batch_dim < 0:
            raise UsageError(
                f"batch_dim={batch_dim}: count dimensions from 0, since outputs may have fewer than"
                " inputs"
            )
        if loss_reduction not in ("mean", "sum", None):
            raise UsageError(
                f"loss_reduction={loss_reduction!r} is unknown: use 'mean' or 'sum', or None if"
                " forward returns no loss"
            )
        super().__init__(
            backend=backend,
            bucket_cap_mb=bucket_cap_mb,
            loss_reduction=loss_reduction or "auto",
            loss_weight=loss_weight,
            sync_loss=self.divides_data,
            sync_batchnorm=sync_batchnorm,
        )
        self.batch_dim = batch_dim
        self.forward_reduction = loss_reduction

    @hookimpl
    def launch(self, session: Context) -> World:
        return self.arrange(session, session.start_ranks())

    def arrange(self, session: Context, world: World) -> World:
        """Return a world in which every rank has all of the data."""
        return groups.arrange_ranks(session, dp=1, rows=world.world_size)

    def make_team(self, session: Context) -> RankGroup:
        """Return the ranks that compute a batch together. All ranks call it."""
        return everyone(session)

    def start(self, session: Context) -> None:
        """Divide the forward, and begin to synchronise."""
        self._team = self.make_team(session)
        forward = DividedForward(session, self._team, self.batch_dim, self.forward_reduction)
        session.bus.register(forward, f"{self.name}.forward")
        session.replace(torch.autograd, "grad", over_team(self._team))
        super().start(session)

    def division(self, session: Context) -> options.Division:
        """Return a division in which the ranks of a team compute a batch together."""
        return divide(session, self._team)

    def how(self) -> str:
        """Return what ``explain()`` says after the strategy's name and backend."""
        return self.engine


class DDP2(DP):
    """dp among the ranks of a node, ddp across nodes. It has the arguments of DP.

    A node's batch has the loader's batch size, and each node has another batch. A loss between
    samples sees all pairs of its node's batch.
    """

    name = "ddp2"
    engine = (
        "each node has its share of the data, and its ranks compute their rows of each forward;"
        " gradients are averaged over all"
    )
    divides_data = True
    companions = ("sampler",)

    def arrange(self, session: Context, world: World) -> World:
        """Return a world in which the ranks of a node have the same part of the data."""
        session.change_world(data_place=DataPlace(world.node_rank, world.num_nodes))
        return session.world

    def make_team(self, session: Context) -> RankGroup:
        """Return the ranks of this rank's node. All ranks of all nodes call it.

        Nodes may differ in the number of their ranks, so all ranks exchange their nodes' numbers.
        """
        nodes = session.all_gather_object(session.world.node_rank)
        numbers = sorted(set(nodes))
        place = DataPlace(numbers.index(session.world.node_rank), len(numbers))
        session.change_world(data_place=place, member=session.world.local_rank)
        size = len(nodes) // len(numbers)
        if nodes == [number for number in numbers for _ in range(size)]:
            groups.arrange_ranks(session, dp=len(numbers), rows=size)
        return of_node(session, nodes)


Inputs = Tensor | Sequence[Tensor]
Gradients = tuple[Tensor | None, ...]
Grad = Callable[..., Gradients]


def over_team(team: RankGroup) -> Callable[[Grad], Grad]:
    """Make a ``torch.autograd.grad`` that averages. All ranks of the team call what it returns."""

    def make(original: Grad) -> Grad:
        def grad(outputs: Inputs, inputs: Inputs, *args: object, **kwargs: object) -> Gradients:
            asked = [inputs] if isinstance(inputs, Tensor) else list(inputs)
            gradients = original(outputs, asked, *args, **kwargs)
            return tuple(
                _mean(gradient, team)
                if gradient is not None and isinstance(tensor, nn.Parameter)
                else gradient
                for tensor, gradient in zip(asked, gradients, strict=True)
            )

        return grad

    return make


def _mean(gradient: Tensor, team: RankGroup) -> Tensor:
    mean: Tensor = MeanOverTeam.apply(gradient, team)  # type: ignore[no-untyped-call]
    return mean
