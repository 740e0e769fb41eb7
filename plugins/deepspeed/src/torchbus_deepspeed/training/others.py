"""Trained parameters that no engine holds, such as a body below a head that is trained alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from torchbus_deepspeed._compat import zero


class Others:
    """Averages their gradients once the graph has run.

    ``wanted``: the ids of those that some rank reaches, the same on all ranks.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = list(parameters)
        self.wanted: set[int] = set()
        self._nodes = [zero.gradient_node(one, stage=0) for one in self.parameters]
        self._before: list[Tensor | None] = []

    def announced(self) -> set[int]:
        """The ids of those that the graph which begins to run will reach."""
        pairs = zip(self.parameters, self._nodes, strict=True)
        return {id(one) for one, node in pairs if zero.will_execute(node)}

    def begin(self) -> None:
        """Set earlier gradients aside, so that this backward's are by themselves."""
        self.wanted = set()
        self._before = [one.grad for one in self.parameters]
        for one in self.parameters:
            one.grad = None

    @torch.no_grad()
    def finish(self, counts: bool) -> None:
        """All ranks call it. If this rank doesn't count, it contributes zeros."""
        for one, old in zip(self.parameters, self._before, strict=True):
            if id(one) in self.wanted:
                one.grad = _mean(one, one.grad if counts else None)
            if old is not None:
                one.grad = old if one.grad is None else old.add_(one.grad)
        self._before = []


def _mean(parameter: Tensor, gradient: Tensor | None) -> Tensor:
    if gradient is None:
        gradient = torch.zeros_like(parameter)
    mean = gradient.to_dense() if gradient.is_sparse else gradient.contiguous()
    dist.all_reduce(mean)
    return mean / dist.get_world_size()
