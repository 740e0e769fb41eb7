"""Ranks that all compute the same thing are found out in the first steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torchbus.plugin import Context, hookimpl, inventory, warn

from torchbus_ddp.backward import header

LOOKS = 5


class ReplicaWatch:
    """Warns once when all ranks had the same losses in the first steps, or (dropout differs) the same inputs: then
    nothing was divided."""

    def __init__(self, session: Context) -> None:
        self._session = session
        self._looks = 0
        self._equal = 0
        self.input_sum = 0.0
        self._rows = 0  # of the first input of a forward

    @hookimpl
    def module_called(self, module: Module, inputs: tuple[Any, ...]) -> None:
        """The first call after a backward has the batch."""
        if not self.input_sum:
            tensors = [value.detach() for value in inputs if isinstance(value, Tensor)]
            self.input_sum = sum(map(weighted_sum, tensors))
            self._rows = max([self._rows, *(len(tensor) for tensor in tensors[:1] if tensor.dim())])

    def look(self, mean: Sequence[float], sent: Sequence[float]) -> None:
        """Compare what this rank has sent with the mean over ranks; a few times only."""
        if self._looks >= LOOKS:
            return
        self._looks += 1
        self.input_sum = 0.0
        self._equal += any(_equal(mean[slot], sent[slot]) for slot in (header.RAW_LOSS, header.INPUT))
        if self._session.share.indices:
            self._looks = LOOKS
        elif self._looks == self._equal == LOOKS and self._session.is_main:
            warn(self._words())
        if self._looks == LOOKS:
            self._session.seams.retire("module_called")

    def _words(self) -> str:
        same = f"all {self._session.world_size} ranks computed the same thing: their inputs or losses were equal in the first {LOOKS} steps. "
        if inventory.alive(_BaseDataLoaderIter):
            return same + "An iterator of a DataLoader was made before the block: make it inside, where the session sees it"
        shard, dp = ("torchbus.current().shard(...)", "--strategy dp") if self._session.under_command else ("s.shard(...)", "strategy='dp'")
        ways = f"The script makes its batches itself: divide them with {shard}, or draw them from per-rank random numbers"
        divides = f"; {dp} divides each batch in the model's forward, with no change of the script"
        return same + ways + (divides if self._rows >= self._session.world_size else "")


def weighted_sum(values: Tensor) -> float:
    """Weighted by place: one-hot rows have equal sums. 0.0 for what has no numbers in rows (sparse and nested tensors) or
    none that can be read (meta tensors, inside vmap): this is a look, and must not stop a loop."""
    if values.is_complex() or values.is_nested or values.layout != torch.strided:
        return 0.0
    try:
        flat = values.reshape(-1).double()
        return float((flat * torch.arange(1, flat.numel() + 1, device=flat.device)).mean()) if flat.numel() else 0.0
    except (RuntimeError, NotImplementedError):
        return 0.0


def _equal(mean: float, own: float) -> bool:
    return bool(own) and abs(mean - own) <= 3e-7 * abs(own)  # told in float32
