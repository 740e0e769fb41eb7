"""A process group of one real rank in a world of many that are not there."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _create_work_from_future
from torch.futures import Future


class Alike(dist.ProcessGroup):
    """A process group in which all other ranks do as this one."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self.ranks, self.sent, self.calls = size, 0, 0

    def getBackendName(self) -> str:
        return "alike"

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        if opts is None or opts.reduceOp == dist.ReduceOp.SUM:
            for tensor in tensors:
                tensor.mul_(self.ranks)
        return self._done(tensors)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        for output, tensor in zip(outputs, inputs, strict=True):
            for one in output:
                one.copy_(tensor)
        return self._done(inputs)

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> Any:
        return self._done(tensors)

    def barrier(self, opts: Any = None) -> Any:
        return self._done([])

    def _done(self, tensors: list[Tensor]) -> Any:
        self.sent += sum(tensor.nbytes for tensor in tensors)
        self.calls += 1
        done: Future[Any] = Future()
        done.set_result(tensors)
        return _create_work_from_future(done)
