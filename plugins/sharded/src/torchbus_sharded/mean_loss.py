"""After a backward the loss is the mean over the samples of all ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torchbus import Session
from torchbus.seams.backward import BackwardCall


class MeanLoss:
    """One in the host's memory is told when the ranks meet at the end of the backward: ``number`` is this rank's part of the sum. For one
    on a GPU nobody waits: it is reduced while the engine runs. A rank without any samples of its own adds nothing, whatever its loss is.
    """

    def __init__(self, session: Session, call: BackwardCall, weight: float) -> None:
        self._world_size = session.world_size
        self._loss = call.loss if _is_the_loops_own(call) else None
        self._total: Tensor | None = None
        self._work: Any = None
        self.number = 0.0
        if self._loss is None:
            return
        if self._loss.device.type == "cpu":
            self.number = self._loss.item() * weight if weight else 0.0
        else:
            self._total = self._loss.detach() * weight if weight else torch.zeros_like(self._loss)
            self._work = dist.all_reduce(self._total, async_op=True)

    def put(self, told: float) -> None:
        """``told``: the sum of what the ranks have told."""
        if self._loss is None:
            return
        if self._total is None:
            self._loss.data.fill_(told / self._world_size)
        else:
            self._work.wait()
            self._loss.data.copy_(self._total / self._world_size)


def _is_the_loops_own(call: BackwardCall) -> bool:
    loss = call.loss
    return not (loss is None or loss.dim() or loss.is_leaf or loss._is_view() or call.retain_graph)
