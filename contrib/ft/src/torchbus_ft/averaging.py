"""Averages gradients in the replica and then over replicas; broadcasts buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from torchbus_ft.live import Live
from torchbus_ft.replicas import ReplicaLink
from torchbus_strategy.backward import reduction
from torchbus_strategy.parameters import averaging, rank0_values
from torchbus_strategy.parameters import trained as strategy_trained


def mean_over(replicas: ReplicaLink, tensors: Sequence[Tensor]) -> None:
    """Replace tensors in place by their means over all ranks of all replicas.

    It needs two collectives per dtype and device. All ranks call it with tensors of the same
    shapes, dtypes and devices. If another replica leaves, the tensors hold the means over this
    replica, and the step is dropped.
    """
    if dist.get_world_size() > 1:
        averaging.mean_over(tensors)
    over_replicas(replicas, tensors)


def over_replicas(replicas: ReplicaLink, tensors: Sequence[Tensor]) -> None:
    """Replace tensors in place by their means over this rank and the same rank of other replicas.

    All ranks call it with tensors of the same shapes, dtypes and devices. If another replica
    leaves, the tensors are unchanged, and the step is dropped.
    """
    found = []
    for kind in dict.fromkeys((tensor.dtype, tensor.device) for tensor in tensors):
        same = [tensor for tensor in tensors if (tensor.dtype, tensor.device) == kind]
        flat = torch.cat([tensor.reshape(-1) for tensor in same])
        if not replicas.mean(flat):
            return
        found += list(zip(same, flat.split([one.numel() for one in same]), strict=True))
    for tensor, part in found:
        tensor.copy_(part.view_as(tensor))


@torch.no_grad()
def average_held(replicas: ReplicaLink, parameters: Sequence[Tensor], weight: float) -> None:
    """Average gradients that no synchronised backward has made. All ranks call it.

    ``weight`` is this rank's weight in the mean. A gradient that no rank has stays None.
    """
    reached = torch.tensor([float(one.grad is not None) for one in parameters])
    gradients = [averaging.dense_gradient(one) * weight for one in parameters]
    mean_over(replicas, [reached, *gradients])
    for one, gradient, share in zip(parameters, gradients, reached.tolist(), strict=True):
        one.grad = gradient if share else None


class SharedBuffers(rank0_values.Buffers):
    """Broadcasts the buffers of rank 0 of the first replica to all ranks of all replicas."""

    def __init__(self, buffers: Callable[[], list[Tensor]], replicas: ReplicaLink) -> None:
        super().__init__([])
        self.are_none = False
        self._of_all = buffers
        self._replicas = replicas

    @torch.no_grad()
    def copy_from_rank0(self, alike: bool = True) -> None:
        buffers = self._of_all()
        if not buffers:
            return
        flat = torch.cat([_bytes(one) for one in buffers])
        if self._replicas.number or dist.get_rank():
            flat.zero_()
        if dist.get_world_size() > 1:
            dist.broadcast(flat, 0)
        if self._replicas.sum(flat):
            for one, part in zip(buffers, flat.split([b.nbytes for b in buffers]), strict=True):
                one.data.copy_(part.clone().view(one.dtype).view_as(one))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


class AcrossReplicas(reduction.AllAfterBackward):
    """Averages gradients over ranks and replicas after each backward, and calls ``averaged``."""

    def __init__(
        self,
        trained: strategy_trained.TrainedParameters,
        replicas: ReplicaLink,
        live: Live,
        averaged: Callable[[], None],
    ) -> None:
        super().__init__(trained, self._average)
        self._replicas = replicas
        self._live = live
        self._buffers = SharedBuffers(live.buffers, replicas)
        self._averaged = averaged

    def _average(self, tensors: list[Tensor]) -> None:
        mean_over(self._replicas, tensors)
        self._averaged()

    def drop(self) -> None:
        super().drop()
        self._live.forget()

    def current(self) -> reduction.AfterBackward:
        found = super().current()
        found.buffers = self._buffers
        return found
