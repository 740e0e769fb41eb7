"""``backward`` under fsdp: torch reduces the gradients; what remains is the weight of this rank's samples, and the loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.nn import Module
from torchbus.plugin import MODULUS, BackwardCall, Constants, Context, Count, Unsupported, hookimpl, made_anew, told_alike

from torchbus_sharded.engine.forward_hooks import CLOSELY
from torchbus_sharded.fsdp.loss_counts import Counted
from torchbus_sharded.fsdp.mean_loss import MeanLoss
from torchbus_sharded.fsdp.models import ShardedModels

if TYPE_CHECKING:
    from torchbus_sharded.fsdp.unmanaged import LooseTensors


class ShardedBackward:
    """Owns ``backward``."""

    def __init__(self, session: Context, models: ShardedModels, loose: LooseTensors, counted: Counted) -> None:
        assert session.job is not None
        self._loose = loose
        self._session = session
        self._models = models
        self._counted = counted
        self._job = session.job
        self._constants = Constants(session, models.optimizer_settings)

    @hookimpl
    def run_backward(self, call: BackwardCall, engine: Callable[..., None]) -> None:
        if call.create_graph:
            raise Unsupported("backward(create_graph=True) under strategy='fsdp': gradients are in parts that have no graph; use strategy='ddp'")
        if call.inputs:
            raise Unsupported("backward(inputs=) under strategy='fsdp': what is asked for are parts, which are not in the graph; use strategy='ddp'")
        count = self._counted.of(call)
        count = self._begin(count)
        loss = MeanLoss(self._session, call, count)
        constants = self._constants.number(call.loss, self._session.share.weight, self._job.backwards)
        tensors, gradients = call.start(count.weight)
        holders = self._models.gradient_holders()
        with made_anew(holders) if count.anew else nullcontext(), self._loose.averaged() as loose:
            self._models.reached.begin()
            engine(tensors, gradients, call.retain_graph, False, inputs=call.inputs)
            counts = not isinstance(count.weight, float) or count.weight != 0.0
            means = loss.means(self._settle(counts, loss.numbers, constants))
            scale = self._counted.settle(call, count, means[1:], [*holders, *loose])
        loss.put(means[0] * scale)
        self._models.share_buffers()
        self._models.whole.refuse_gradients()
        self._end()

    def _begin(self, count: Count) -> Count:
        """Gloo never takes collectives of two kinds for one. So once the ranks are known to do the same it is enough that they compare what they
        have done before they use the gradients. The number of collectives tells waiting ranks apart, one of which has made another call before."""
        number = self._job.backwards + 1
        agreement = self._models.agreement
        self._job.wait_in("backward", number, "after", agreement.collectives(), "collectives")
        if not self._counted.losses.meets:
            closely = number <= CLOSELY or dist.get_backend() != "gloo"
            (agreement.meet if closely else agreement.passing)(f"backward {number}")
        return self._counted.losses.meet(count)

    def _settle(self, counts: bool, numbers: Sequence[float], constants: int) -> list[float]:
        """Returns the sums of all ranks' numbers. ``constants``: the checksum of those that all ranks should have in common."""
        self._models.end_backward()
        agreement, reached = self._models.agreement, self._models.reached
        agreement.passing(f"{agreement.collectives()} collectives")
        told = agreement.meet(f"the end of backward {self._job.backwards + 1}", reached.flags(counts), [*numbers, constants, constants**2])
        reached.settle(told.flags)
        self._compare(constants, *told.totals[len(numbers) : len(numbers) + 2])
        return told.totals[: len(numbers)]

    def _compare(self, constants: int, total: float, total_of_squares: float) -> None:
        size = self._session.world_size
        if not told_alike(constants, total / size, total_of_squares / size):
            self._constants.judge(self._job.backwards % MODULUS)

    def _end(self) -> None:
        self._job.go_on()
        self._job.count_backward()
        if not self._session.random.is_split:
            self._session.random.split(self._session.rank)
        if self._job.backwards == CLOSELY:
            self._models.passes.settle()
            self._session.end_discovery()

    @hookimpl
    def backward_failed(self) -> None:
        self._job.go_on()
        self._models.passes.reset_all()

    @hookimpl
    def mode_changed(self, model: Module, training: bool) -> None:
        self._session.random.use("own" if training else "evaluation")

    @hookimpl
    def scheduler_metric(self, metric: Any) -> Any:
        return self._session.reduce(metric)
