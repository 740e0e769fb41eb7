"""``backward`` under fsdp: torch reduces the gradients; here the loss is weighted and averaged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch import Tensor
from torch.nn import Module
from torchbus.plugin import BackwardCall, Context, RanksDiverged, Unsupported, hookimpl, warn

from torchbus_sharded.engine.forward_hooks import CLOSELY
from torchbus_sharded.engine.parameter_hooks import zeros_instead
from torchbus_sharded.fsdp.buffers import copy_from_rank0
from torchbus_sharded.fsdp.loss_counts import LossCounts
from torchbus_sharded.fsdp.mean_loss import MeanLoss
from torchbus_sharded.fsdp.models import ShardedModels
from torchbus_strategy.checks import divergence
from torchbus_strategy.checks.constants import MODULUS, Constants, told_alike
from torchbus_strategy.loss.gradients import made_anew
from torchbus_strategy.loss.terms import Count

if TYPE_CHECKING:
    from torchbus_sharded.fsdp.unmanaged import UnmanagedTensors


LOST = (
    "backward() has raised and the loop goes on: under strategy='fsdp' what that backward had added"
    " to the gradients is lost. That changes nothing where the loop clears them before its next"
    " backward or step; else use strategy='ddp'"
)


WRITTEN = (
    "a forward writes to parameters, and writes other values on other ranks, because they come from"
    " the rank's own samples (torch.nn.Embedding with max_norm, weights that are set from the first"
    " batch). Write them in the loop, from what all ranks have in common"
)
ORDER = (
    "at backward call {} the ranks do not have the same order of the data, or are not at the same"
    " place in it ({})"
)


class ShardedBackward:
    """Owns ``backward``."""

    def __init__(
        self,
        session: Context,
        models: ShardedModels,
        unmanaged: UnmanagedTensors,
        counts: LossCounts,
    ) -> None:
        assert session.job is not None
        self._unmanaged = unmanaged
        self._session = session
        self._models = models
        self._counts = counts
        self._job = session.job
        self._constants = Constants(session, models.optimizer_settings)
        self._has_failed = self._has_said = False
        self._made = 0  # in this process: a run that resumes counts on

    @hookimpl
    def run_backward(self, call: BackwardCall, engine: Callable[..., None]) -> None:
        _refuse(call)
        count = self._begin(self._counts.of(call))
        loss = MeanLoss(self._session, call, count)
        constants = self._constants.number(
            call.loss, self._session.share.weight, self._job.backwards
        )
        tensors, gradients = call.start(count.weight)
        holders = self._models.gradient_holders()
        goes_beyond = self._session.bus.heard("average_beyond")
        with (
            made_anew(holders) if count.anew or goes_beyond else nullcontext(),
            self._unmanaged.averaged() as whole,
        ):
            self._models.used.begin()
            with self._dropped() if count.is_zero else nullcontext():
                engine(tensors, gradients, call.retain_graph, False, inputs=call.inputs)
            means = loss.means(self._settle(not count.is_zero, loss.numbers, constants))
            if goes_beyond:
                means = self._beyond(holders, means)
            scale = self._counts.settle(call, count, means[1:], [*holders, *whole])
        loss.put(means[0] * scale)
        copy_from_rank0(self._models)
        self._models.undivided.refuse_gradients()
        self._end()

    def _beyond(
        self, holders: Sequence[Tensor], means: Sequence[float] | Tensor
    ) -> Sequence[float]:
        """Let replicas that are sessions of their own average too."""
        own = means.tolist() if isinstance(means, Tensor) else list(means)
        told = self._session.bus.hook.average_beyond(parameters=list(holders), numbers=own)
        return own if told is None else list(told)

    def _dropped(self) -> AbstractContextManager[None]:
        """This rank has no samples of its own, and its gradients count nothing."""
        return zeros_instead([*self._models.gathered(), *self._unmanaged.shared()])

    def _begin(self, count: Count) -> Count:
        """Compare now, or later in this backward, whether all ranks are at the same place.

        Gloo never takes collectives of two kinds for one. So once the ranks are known to do the
        same, it is enough to compare before they use the gradients. The number of collectives tells
        a rank apart that has made another call before.
        """
        if self._has_failed and not self._has_said and self._session.is_main:
            self._has_said = True
            warn(LOST)
        self._models.forwards.writes.keep_all()
        number = self._job.backwards + 1
        agreement = self._models.agreement
        self._job.wait_in("backward", number, "after", agreement.collectives(), "collectives")
        if not self._counts.losses.meets:
            closely = number <= CLOSELY or dist.get_backend() != "gloo"
            (agreement.meet if closely else agreement.passing)(f"backward {number}")
        return self._counts.losses.meet(count)

    def _settle(self, counts: bool, numbers: Sequence[float], constants: int) -> list[float]:
        """Compare what the ranks have done, and return the sums of their numbers.

        ``constants`` is the checksum of what all ranks should have in common. So is the position in
        the order of the data.
        """
        self._models.end_backward()
        agreement, used = self._models.agreement, self._models.used
        agreement.passing(f"{agreement.collectives()} collectives")
        flags, writes = used.flags(counts), self._models.forwards.writes
        position = self._session.share.position % MODULUS
        own = (constants, position, writes.tell(flags))
        told = agreement.meet(
            f"the end of backward {self._job.backwards + 1}",
            bytes(flags),
            [*numbers, *own, *(one**2 for one in own)],
        )
        used.settle(told.flags)
        writes.hear(told.flags)
        self._refuse_unlike(own, told.totals[len(numbers) :])
        return told.totals[: len(numbers)]

    def _refuse_unlike(self, own: tuple[int, int, int], totals: Sequence[float]) -> None:
        """Raise RanksDiverged, on all ranks, if constants, position or writes differ."""
        same_constants, same_position, same_writes = map(
            self._is_alike, own, totals, totals[len(own) :]
        )
        if not same_position:
            raise RanksDiverged(ORDER.format(self._job.backwards + 1, divergence.SEED))
        if not same_writes:
            raise RanksDiverged(WRITTEN)
        if not same_constants:
            self._constants.judge(self._job.backwards % MODULUS)

    def _is_alike(self, mine: int, total: float, total_of_squares: float) -> bool:
        size = self._session.world_size
        return told_alike(mine, total / size, total_of_squares / size)

    def _end(self) -> None:
        self._job.go_on()
        self._job.count_backward()
        if not self._session.random.is_split:
            self._session.random.split(self._session.world.data.part)
        self._made += 1
        if self._made == CLOSELY:
            self._models.forwards.settle()
            self._session.end_discovery()

    @hookimpl
    def backward_failed(self) -> None:
        self._has_failed = True
        self._job.go_on()
        self._models.forwards.reset_all()

    @hookimpl
    def mode_changed(self, model: Module, training: bool) -> None:
        self._session.random.use("own" if training else "evaluation")

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]]:
        return {"notes": self._counts.notes} if self._counts.notes else {}

    @hookimpl
    def scheduler_metric(self, metric: Tensor | float) -> Tensor:
        return self._session.reduce(metric)


def _refuse(call: BackwardCall) -> None:
    if call.create_graph:
        raise Unsupported(
            "backward(create_graph=True) under strategy='fsdp': gradients are in parts that have no"
            " graph; use strategy='ddp'"
        )
    if call.inputs:
        raise Unsupported(
            "backward(inputs=) under strategy='fsdp': the inputs are parts of parameters, which are"
            " not in the graph; use strategy='ddp'"
        )
