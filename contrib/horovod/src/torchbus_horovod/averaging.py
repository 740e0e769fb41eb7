"""Horovod's all-reduces of one backward: begun one by one, awaited together."""

from __future__ import annotations

import time
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torchbus.plugin import Unsupported

PAUSE_S = 1e-3
"""While a rank waits. Shorter pauses take the processor from Horovod's threads."""
TWICE = (
    "backward makes a gradient in its own graph, and again in a graph inside of it, as reentrant"
    " checkpointing of shared parameters does: use checkpoint(..., use_reentrant=False)"
)
HEADER = 0
Compression = Literal["none", "fp16"]


class Running(NamedTuple):
    """An all-reduce of ``sent``, whose result is for ``tensor``."""

    tensor: Tensor
    sent: Tensor
    handle: int


class Averaging:
    """Replaces tensors by their mean over ranks. Each has a number, equal on all ranks.

    Number 0 is the header: it is neither compressed nor combined by Adasum.
    """

    def __init__(self, hvd: Any, name: str, adasum: bool, compression: Compression) -> None:
        self._hvd = hvd
        self._name = name
        self._op = hvd.Adasum if adasum else hvd.Average
        self._compression = compression
        self._running: dict[int, Running] = {}

    def begin(self, number: int, tensor: Tensor) -> None:
        """Start to average a tensor, which must not change until ``average`` is over."""
        self.refuse_begun(number)
        sent = self._to_send(tensor.detach(), number == HEADER)
        handle = self._hvd.allreduce_async_(
            sent,
            name=f"{self._name}.{number}",
            op=self._hvd.Average if number == HEADER else self._op,
        )
        self._running[number] = Running(tensor, sent, handle)

    def refuse_begun(self, number: int) -> None:
        """Raise Unsupported if a gradient that is on its way has been added to."""
        if number in self._running:
            raise Unsupported(TWICE)

    def average(self, tensors: list[Tensor]) -> None:
        """Average all tensors, by their number. Some may have begun already."""
        for number, tensor in enumerate(tensors):
            if number not in self._running:
                self.begin(number, tensor)
        running, self._running = self._running, {}
        for one in reversed(running.values()):  # the last to begin is the last to end
            self._finish(one)
        if any(one.tensor is not tensors[number] for number, one in running.items()):
            raise Unsupported(TWICE)

    def _to_send(self, tensor: Tensor, exactly: bool) -> Tensor:
        """What Horovod takes: contiguous, real, and as precise, unless compressed."""
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        if self._compression == "fp16" and not exactly:
            real = real.half()
        elif real.dtype == torch.bfloat16:
            real = real.float()
        return real.contiguous()

    def _finish(self, one: Running) -> None:
        while not self._hvd.poll(one.handle):
            time.sleep(PAUSE_S)  # Horovod's own wait would keep Python's other threads waiting
        self._hvd.synchronize(one.handle)
        if one.sent.data_ptr() != one.tensor.data_ptr():
            mean = torch.view_as_complex(one.sent) if one.tensor.is_complex() else one.sent
            one.tensor.copy_(mean)
