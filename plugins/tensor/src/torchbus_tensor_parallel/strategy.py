"""The strategy ``tp``."""

from __future__ import annotations

from functools import partial
from typing import Literal

from torchbus.plugin import Context, UsageError, World, expect, hookimpl

from torchbus_strategy import groups, options, sharding
from torchbus_strategy.backward import gradients, reduction
from torchbus_strategy.checks import first_steps, replicas
from torchbus_strategy.parameters import averaging
from torchbus_strategy.strategy import Strategy
from torchbus_tensor_parallel.dtensor import as_whole, divide_losses
from torchbus_tensor_parallel.models import DividedModels, TensorParallelGroups
from torchbus_tensor_parallel.plans import ModulePlan, PlanOption

EXACT_SINCE = "2.13"
"""2.11 can't divide the heads of a transformer. 2.12: not tried."""


class TensorParallel(Strategy):
    """The ranks of a tensor group share each layer of the plan; the groups divide the data.

    If there is one group, all ranks compute one batch together. With several groups, each has a
    share of the data, and gradients are averaged over groups (2D).

    Args:
        plan: which modules are divided, and how. It is a dict from module names, in which ``*``
            stands for any word between two dots, to "colwise", "rowwise" or a ``ParallelStyle`` of
            torch. "auto" divides attention and MLPs.
        tp: how many ranks share a layer. None means all ranks.
        sequence_parallel: whether each rank has a part of the sequence (dim 1) between the layers
            of the plan, inside blocks. This needs less memory.
        loss_parallel: whether outputs of a model whose last layer is divided by columns stay
            divided. The ranks then share the classes of a cross entropy.
        loss_reduction: whether losses are a "mean" or a "sum" over samples. "auto" reads this from
            the loss's graph, and assumes a mean if the graph does not show it.
        loss_weight: what a rank's gradient counts in the mean: "auto", "samples" or "tokens", as
            for ddp.
        backend: the torch.distributed backend. None means nccl for GPUs, and gloo for CPUs.

    Raises:
        UsageError: the plan or tp is of another type, a style is unknown, or tp does not divide the
            number of ranks.

    Source: Shoeybi et al., Megatron-LM: Training Multi-Billion Parameter Language Models Using
    Model Parallelism, 2019; torch.distributed.tensor.parallel.
    """

    name = "tp"
    gathers = True
    takes_bytes = False

    def __init__(
        self,
        *,
        plan: PlanOption = "auto",
        tp: int | None = None,
        sequence_parallel: bool = False,
        loss_parallel: bool = False,
        loss_reduction: Literal["auto", "mean", "sum"] = "auto",
        loss_weight: Literal["auto", "samples", "tokens"] = "auto",
        backend: str | None = None,
    ) -> None:
        super().__init__(backend=backend, loss_reduction=loss_reduction, loss_weight=loss_weight)
        if tp is not None and (not isinstance(tp, int) or isinstance(tp, bool) or tp < 1):
            raise UsageError(f"tp={tp!r}: say how many ranks share a layer, such as tp=2")
        expect("loss_parallel", loss_parallel, bool, "True or False")
        self.plan = ModulePlan(plan, sequence_parallel)
        self.loss_parallel = loss_parallel
        self.tp = tp

    @hookimpl
    def launch(self, session: Context) -> World:
        """Start the ranks, and give the ranks of a tensor group the same part of the data."""
        sharding.refuse_older_torch(session, "tp", EXACT_SINCE)
        if session.launcher.ranks_asked_for > 1:
            self._tensor_size(session.launcher.ranks_asked_for)
        world = session.start_ranks()
        size = self._tensor_size(world.world_size)
        return groups.arrange_ranks(session, dp=world.world_size // size, tp=size)

    def start(self, session: Context) -> None:
        """Divide the models that optimizers hold, and begin to synchronise."""
        as_whole(session)
        if self.loss_parallel:
            divide_losses(session)
        ranks = TensorParallelGroups(session)
        sync = gradients.GradientSync(
            session,
            self.options,
            divide(session),
            lambda trained: reduction.AllAfterBackward(trained, ranks.average),
            partial(averaging.average, mean=ranks.average),
        )
        session.bus.register(sync, "tp.gradients")
        # registered later, so called earlier: models are divided before their parameters are known
        session.bus.register(
            DividedModels(session, ranks, self.plan, self.loss_parallel), "tp.models"
        )

    def how(self) -> str:
        """Return what ``explain()`` says after the strategy's name and backend."""
        parts = (
            "all see each batch" if self._parts == 1 else f"{self._parts} groups divide the data"
        )
        return f"{self._size} ranks share each layer of the plan; {parts}"

    def _tensor_size(self, world_size: int) -> int:
        self._size = self.tp or world_size
        self._parts = world_size // self._size
        if world_size % self._size:
            raise UsageError(
                f"tp={self._size} with {world_size} {'ranks' if world_size > 1 else 'rank'}: ranks"
                " form groups of tp ranks, so tp must divide their number. Change devices= or tp="
            )
        return self._size


COMPARED = "the ranks of a tensor group", "the same batch"


def divide(session: Context) -> options.Division:
    """Return the division among tensor groups, each of which has a part of the data.

    The ranks of a group draw the same random numbers. A single group draws the numbers of one
    process.
    """
    data = session.world.data
    has_parts = data.parts > 1
    return options.Division(
        replicas.watch_replicas(session) if has_parts else first_steps.SameLoss("tp", *COMPARED),
        stream=data.part if has_parts else None,
        has_parts=has_parts,
    )
