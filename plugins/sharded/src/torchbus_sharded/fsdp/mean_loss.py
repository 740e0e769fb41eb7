"""After a backward the loss is the mean over the samples of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torchbus.plugin import BackwardCall, Context, Count, Number, loss_count

NUMBERS = 1 + loss_count.SLOTS


class MeanLoss:
    """One in the host's memory is told when the ranks meet at the end of the backward: ``numbers`` are this rank's part of the sums, of the loss and
    of what it counts. For one on a GPU nobody waits: they are reduced while the engine runs. A rank without any samples of its own adds nothing,
    whatever its loss is.
    """

    def __init__(self, session: Context, call: BackwardCall, count: Count) -> None:
        self._world_size = session.world_size
        loss = call.loss
        self._loss = loss if _is_the_loops_own(call) else None
        self._totals: Tensor | None = None
        self._work: Any = None
        self.numbers = [0.0] * NUMBERS
        if loss is None or loss.dim():
            return
        told = [_weighted(loss.detach(), count.weight) if count.value is None else count.value, *count.told()]
        if loss.device.type == "cpu":
            self.numbers = [float(number) for number in told]
        else:
            self._totals = torch.stack([torch.as_tensor(number, dtype=torch.float32, device=loss.device) for number in told])
            self._work = dist.all_reduce(self._totals, async_op=True)

    def means(self, told: Sequence[float]) -> Sequence[float] | Tensor:
        """``told``: the sums of what the ranks have told. Of the loss, and of what the ranks' losses count."""
        if self._totals is None:
            return [total / self._world_size for total in told]
        self._work.wait()
        return self._totals / self._world_size

    def put(self, mean: Number) -> None:
        """Write what the loop is to read."""
        if self._loss is None:
            return
        if isinstance(mean, Tensor):
            self._loss.data.copy_(mean)
        else:
            self._loss.data.fill_(mean)


def _weighted(loss: Tensor, weight: Number) -> Number:
    if isinstance(weight, Tensor):
        return torch.where(weight == 0.0, 0.0, loss * weight)
    return loss * weight if weight else 0.0


def _is_the_loops_own(call: BackwardCall) -> bool:
    loss = call.loss
    return not (loss is None or loss.dim() or loss.is_leaf or loss._is_view() or call.retain_graph)
