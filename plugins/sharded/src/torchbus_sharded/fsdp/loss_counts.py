"""Weights of the ranks' losses.

Gradients are weighted by these counts, and divided by the mean of the weights once it is known.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torchbus.plugin import BackwardCall, Context

from torchbus_sharded.checks.agreement import Agreement
from torchbus_strategy.checks import first_steps
from torchbus_strategy.loss.gradients import scale_all
from torchbus_strategy.loss.terms import Count, Number
from torchbus_strategy.loss.weights import LossWeights

READ_AT_ONCE = 3
"""Backwards in which the host waits for a GPU's numbers, to learn whether they matter at all."""


class LossCounts:
    """The weight of each backward. fsdp reduces every one, also in the middle of a window."""

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
        """Return this rank's weight: as the loop says, else by its loss, else by its samples."""
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
                [_local_part(holder.grad) for holder in holders if holder.grad is not None],
                scales.gradient,
            )
        return scales.loss


def _local_part(gradient: Tensor) -> Tensor:
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
