"""``backward`` under fsdp: torch reduces gradients; this module weights and averages the loss.

Gradients are weighted by the ranks' counts, and divided by the mean weight once it is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Module
from torchbus.plugin import BackwardCall, Context, RanksDiverged, Unsupported, hookimpl, warn

from torchbus_sharded._compat import buffers_in
from torchbus_sharded.agreement import Agreement
from torchbus_sharded.forward_hooks import CLOSELY
from torchbus_sharded.meta import zeros_instead
from torchbus_sharded.models import ShardedModels
from torchbus_strategy.checks import divergence, first_steps
from torchbus_strategy.checks.constants import MODULUS, Constants, equal_on_all_ranks
from torchbus_strategy.compat import is_view, local_part
from torchbus_strategy.loss import terms
from torchbus_strategy.loss.gradients import isolated_gradients, scale_all
from torchbus_strategy.loss.intermediate_values import (
    MOST,
    Part,
    kind_of,
    weigh_parts,
    writable_parts,
)
from torchbus_strategy.loss.terms import Count, Number, weighted
from torchbus_strategy.loss.weights import LossWeights
from torchbus_strategy.parameters import rank0_values

if TYPE_CHECKING:
    from torchbus_sharded.unmanaged import UnmanagedTensors


LOST = (
    "backward() has raised and the loop continues: under strategy='fsdp' what that backward had"
    " added to the gradients is lost. Clear the gradients before the next backward or step, or use"
    " strategy='ddp'"
)
WRITTEN = (
    "a forward writes different values to a parameter on each rank, since they come from the rank's"
    " own samples (torch.nn.Embedding with max_norm, weights that are set from the first batch)."
    " Write them in the loop, from reduced values: s.reduce(value)"
)
ORDER = (
    "at backward call {} the ranks do not have the same order of the data, or are not at the same"
    " place in it ({})"
)


class ShardedBackward:
    """Implements ``backward`` under fsdp."""

    def __init__(
        self,
        session: Context,
        models: ShardedModels,
        unmanaged: UnmanagedTensors,
        counts: BackwardWeights,
    ) -> None:
        assert session.job is not None
        self._unmanaged = unmanaged
        self._session = session
        self._models = models
        self._counts = counts
        self._job = session.job
        self._constants = Constants(session, models.optimizer_settings)
        self._has_failed = self._has_said = False
        self._made = 0  # backwards of this process; ``job.backwards`` also counts earlier runs'

    @hookimpl
    def run_backward(self, call: BackwardCall, engine: Callable[..., None]) -> None:
        _refuse(call)
        count = self._begin(self._counts.of(call))
        loss = LossSums(self._session, call, count)
        constants = self._constants.number(
            call.loss, self._session.share.weight, self._job.backwards
        )
        tensors, gradients = call.start(count.weight)
        holders = self._models.gradient_holders()
        goes_beyond = self._session.bus.has_listeners("average_beyond")
        with (
            isolated_gradients(holders) if count.isolated or goes_beyond else nullcontext(),
            self._unmanaged.averaged(call) as whole,
        ):
            self._models.used.begin()
            with self._dropped() if count.is_zero else nullcontext():
                engine(tensors, gradients, call.retain_graph, False, inputs=call.inputs)
            means = loss.means(self._compare(not count.is_zero, loss.numbers, constants))
            if goes_beyond:
                means = self._beyond(holders, means)
            counts = means[1 : NUMBERS - PARTS]
            scale = self._counts.scale_gradients(call, count, counts, [*holders, *whole])
        loss.put(means, scale)
        copy_from_rank0(self._models)
        self._models.undivided.refuse_gradients()
        self._end()

    def _beyond(
        self, holders: Sequence[Tensor], means: Sequence[float] | Tensor
    ) -> Sequence[float]:
        """Let replicas, which are separate sessions, average too."""
        ours = means.tolist() if isinstance(means, Tensor) else list(means)
        reported = self._session.bus.hook.average_beyond(parameters=list(holders), numbers=ours)
        return ours if reported is None else list(reported)

    def _dropped(self) -> AbstractContextManager[None]:
        """Drop the gradients of a backward: this rank has no samples, so their weight is 0."""
        return zeros_instead([*self._models.gathered(), *self._unmanaged.shared()])

    def _begin(self, count: Count) -> Count:
        """Check, now or later in this backward, that all ranks are at the same place.

        Once the ranks are known to do the same, comparing them before they use the gradients is
        enough. The number of collectives reveals a rank that made another call before.
        """
        if self._has_failed and not self._has_said and self._session.is_main:
            self._has_said = True
            warn(LOST)
        self._models.forwards.writes.keep_all()
        number = self._job.backwards + 1
        agreement = self._models.agreement
        self._job.wait_in("backward", number, "after", agreement.collectives(), "collectives")
        if not self._counts.losses.gathers:
            what = f"backward {number}"
            agreement.sync(what) if number <= CLOSELY else agreement.enter(what, "backward")
        return self._counts.losses.weigh_terms(count)

    def _compare(self, counts: bool, numbers: Sequence[float], constants: int) -> list[float]:
        """Compare the ranks' collectives, and return the sums of their numbers.

        All ranks should have the same ``constants``, which is a checksum, and the same position in
        the order of the data.
        """
        self._models.end_backward()
        agreement, used = self._models.agreement, self._models.used
        agreement.passing(f"{agreement.collectives()} collectives")
        flags, writes = used.flags(counts), self._models.forwards.writes
        position = self._session.share.position % MODULUS
        ours = (constants, position, writes.report(flags))
        reported = agreement.sync(
            f"the end of backward {self._job.backwards + 1}",
            bytes(flags),
            [*numbers, *ours, *(one**2 for one in ours)],
        )
        agreement.way.end()
        used.clear_unreached(reported.flags)
        writes.hear(reported.flags)
        self._refuse_unlike(ours, reported.totals[len(numbers) :])
        return reported.totals[: len(numbers)]

    def _refuse_unlike(self, local: tuple[int, int, int], totals: Sequence[float]) -> None:
        """Raise RanksDiverged, on all ranks, if constants, position or writes differ."""
        same_constants, same_position, same_writes = map(
            self._is_alike, local, totals, totals[len(local) :]
        )
        if not same_position:
            raise RanksDiverged(ORDER.format(self._job.backwards + 1, divergence.SEED))
        if not same_writes:
            raise RanksDiverged(WRITTEN)
        if not same_constants:
            self._constants.judge(self._job.backwards % MODULUS)

    def _is_alike(self, mine: int, total: float, total_of_squares: float) -> bool:
        size = self._session.world_size
        return equal_on_all_ranks(mine, total / size, total_of_squares / size)

    def _end(self) -> None:
        self._job.go_on()
        self._job.count_backward()
        if not self._session.random.is_split:
            self._session.random.split(self._session.world.data.part)
        self._made += 1
        if self._made == CLOSELY:
            self._models.forwards.stop_watching()
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


def copy_from_rank0(models: Iterable[Module]) -> None:
    """Give the models' buffers rank 0's values, in one broadcast per device. All ranks call it."""
    held = [buffer for model in models for some in buffers_in(model) for buffer in some.values()]
    buffers = {
        id(buffer): buffer for buffer in held if buffer is not None and buffer.numel()
    }.values()
    for device in dict.fromkeys(buffer.device for buffer in buffers):
        rank0_values.broadcast([buffer for buffer in buffers if buffer.device == device])


PARTS = 2 + MOST
NUMBERS = 1 + terms.SLOTS + PARTS
"""The loss, its weights, a checksum of the names of its parts with its square, and these parts."""


class LossSums:
    """Sums the ranks' losses, their parts and their weights.

    On a CPU, ``numbers`` are this rank's numbers, which the ranks add in their exchange at the end
    of the backward. On a GPU the sums are computed while the engine runs, and the host does not
    wait. A rank without samples adds zero, even if its loss is NaN.
    """

    def __init__(self, session: Context, call: BackwardCall, count: Count) -> None:
        self._world_size = session.world_size
        loss = call.loss
        self._loss = loss if _is_the_loops_local(call) else None
        self._parts: list[Part] = []
        self._kind = 0
        self._totals: Tensor | None = None
        self._work: dist.Work | None = None
        self.numbers = [0.0] * NUMBERS
        if loss is None or loss.numel() != 1:
            return
        value = loss.detach().reshape(())
        self._parts = parts = writable_parts(session, call, loss, count)
        self._kind = kind = kind_of(parts) % MODULUS
        reported = [
            weighted(value, count.weight) if count.value is None else count.value,
            *count.to_metadata(),
            *(kind, kind**2, *weigh_parts(session, parts, loss, count)),
            *[0.0] * (MOST - len(parts)),
        ]
        if loss.device.type == "cpu":
            self.numbers = [float(number) for number in reported]
        else:
            dtype = torch.promote_types(loss.dtype, torch.float32)
            numbers = [
                number.to(dtype)
                if isinstance(number, Tensor)
                else torch.full((), number, dtype=dtype, device=loss.device)
                for number in reported
            ]
            self._totals = torch.stack(numbers)
            self._work = dist.all_reduce(self._totals, async_op=True)

    def means(self, reported: Sequence[float]) -> Sequence[float] | Tensor:
        """Return the means over ranks of ``numbers``. ``reported`` has their sums on a CPU."""
        if self._totals is None or self._work is None:
            return [total / self._world_size for total in reported]
        self._work.wait()
        return self._totals / self._world_size

    def put(self, means: Sequence[float] | Tensor, scale: Number) -> None:
        """Write the means into the loss, and into its parts if all ranks have the same parts.

        The host does not wait for a GPU.
        """
        mean = means[0] * scale
        if self._loss is not None:
            self._loss.data.copy_(mean) if isinstance(mean, Tensor) else self._loss.data.fill_(mean)
        kind, squared, *others = means[NUMBERS - PARTS :]
        differ = abs(kind - self._kind) + abs(squared - self._kind**2)
        for part, mean in zip(self._parts, others, strict=False):
            is_common = torch.as_tensor(differ < 0.25)
            value = part.tensor.data
            value.copy_(torch.where(is_common, mean * part.scale(scale), value))


def _is_the_loops_local(call: BackwardCall) -> bool:
    loss = call.loss
    if loss is None or loss.numel() != 1:
        return False
    return not (loss.is_leaf or is_view(loss) or call.retain_graph)


READ_AT_ONCE = 3
"""The number of first backwards in which the host waits for a GPU's numbers, to learn whether they
change any gradient.
"""


class BackwardWeights:
    """The weight of each backward. fsdp reduces every backward, even in the middle of a window."""

    def __init__(
        self, session: Context, loss_reduction: str, loss_weight: str, agreement: Agreement
    ) -> None:
        self._session = session
        self._reduction, self._is_sum = loss_reduction, loss_reduction == "sum"
        self._kind_note = ""
        self._agreement = agreement
        mode = "samples" if self._is_sum else loss_weight
        self.losses = LossWeights(session, mode, self._mean, sums=loss_reduction == "auto")
        session.bus.register(self.losses, "fsdp.losses")
        self._backwards = 0

    def _mean(self, numbers: Tensor) -> Tensor:
        assert self._session.job is not None
        return self._agreement.mean(f"backward {self._session.job.backwards + 1}", numbers)

    def of(self, call: BackwardCall) -> Count:
        """Return this rank's weight: what the loop has set, or its loss counts, or its samples."""
        if not self._kind_note:
            self._kind_note = first_steps.look_at_first(self._session, call.loss, self._reduction)
        if self._is_sum:
            if call.weight is None:
                return self.losses.of_sum(call.loss)
            return Count(float(self._session.world.data.parts) if call.weight else 0.0)
        if call.weight is not None:
            return self.losses.take(Count(call.weight))
        return (
            self.losses.take(call.count)
            if call.count is not None
            else self.losses.of(call.loss, self._backwards < READ_AT_ONCE)
        )

    @property
    def notes(self) -> list[str]:
        """The facts about the losses, for ``explain()``."""
        return [note for note in (self._kind_note, self.losses.note) if note]

    def scale_gradients(
        self,
        call: BackwardCall,
        count: Count,
        means: Sequence[float] | Tensor,
        holders: Sequence[Tensor | nn.Parameter],
    ) -> Number:
        """Divide the gradients of ``holders``, once the ranks have exchanged their weights.

        Returns the factor of the averaged loss.
        """
        self._backwards += 1
        windows = call.count is not None and (count.left or not call.sync)
        if not isinstance(means, Tensor):
            scales = self.losses.resolve(means, windows)
        elif self._backwards <= READ_AT_ONCE:
            scales = self.losses.resolve(means.tolist(), windows)
        else:
            scales = self.losses.resolve_on_device(means, windows)
        if scales is None:
            return 1.0
        if count.left:
            count.scale = scales.gradient
        elif not windows and (isinstance(scales.gradient, Tensor) or scales.gradient != 1.0):
            scale_all(
                [local_part(holder.grad) for holder in holders if holder.grad is not None],
                scales.gradient,
            )
        return scales.loss
