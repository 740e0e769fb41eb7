"""The loss after a backward: the mean over the samples of all ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torchbus.plugin import BackwardCall, Context

from torchbus_sharded._compat.tensors import is_view
from torchbus_strategy.loss import terms
from torchbus_strategy.loss.terms import Count, Number

NUMBERS = 1 + terms.SLOTS


class MeanLoss:
    """Sums the ranks' losses, and what these count.

    On CPU, ``numbers`` are this rank's part of the sums: the ranks add them when they meet at the
    end of the backward. On a GPU the sums are made while the engine runs, and the host does not
    wait. A rank without samples of its own adds nothing, whatever its loss is.
    """

    def __init__(self, session: Context, call: BackwardCall, count: Count) -> None:
        self._world_size = session.world_size
        loss = call.loss
        self._loss = loss if _is_the_loops_own(call) else None
        self._totals: Tensor | None = None
        self._work: dist.Work | None = None
        self.numbers = [0.0] * NUMBERS
        if loss is None or loss.dim():
            return
        told = [
            _weighted(loss.detach(), count.weight) if count.value is None else count.value,
            *count.told(),
        ]
        if loss.device.type == "cpu":
            self.numbers = [float(number) for number in told]
        else:
            dtype = torch.promote_types(loss.dtype, torch.float32)
            self._totals = torch.stack(
                [
                    number.to(dtype)
                    if isinstance(number, Tensor)
                    else torch.full((), number, dtype=dtype, device=loss.device)
                    for number in told
                ]
            )
            self._work = dist.all_reduce(self._totals, async_op=True)

    def means(self, told: Sequence[float]) -> Sequence[float] | Tensor:
        """The means over ranks of the loss, and of what it counts. ``told`` are the sums."""
        if self._totals is None or self._work is None:
            return [total / self._world_size for total in told]
        self._work.wait()
        return self._totals / self._world_size

    def put(self, mean: Number) -> None:
        """Write the mean into the tensor that the loop reads."""
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
    return not (loss is None or loss.dim() or loss.is_leaf or is_view(loss) or call.retain_graph)
