"""Activations and their gradients, sent from one stage to the next."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from torchbus_pipeline.team import Team

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
DTYPES = (*FLOATS, torch.int64, torch.int32, torch.bool, torch.uint8)
HEAD, BODY, GRADIENT = range(3)
MOST_DIMS = 8
FAILED = -1


class Link:
    """The messages of one pass. A message has a number, so that none is taken for another."""

    def __init__(self, team: Team, device: torch.device) -> None:
        self._team, self._device = team, device
        self._sent: list[tuple[dist.Work, Tensor]] = []

    def send(self, place: int, tag: int, tensor: Tensor | None) -> None:
        """Send activations, or None: an earlier stage has failed, or this one."""
        self._send(place, tag, HEAD, self._head(tensor))
        if tensor is not None:
            self._send(place, tag, BODY, tensor.detach().contiguous())

    def receive(self, place: int, tag: int) -> Tensor | None:
        """Receive what ``send`` has sent there."""
        head = torch.empty(MOST_DIMS + 2, dtype=torch.int64, device=self._device)
        self._receive(place, tag, HEAD, head)
        made = self._like(head)
        if made is not None:
            self._receive(place, tag, BODY, made)
        return made

    def send_gradient(self, place: int, tag: int, tensor: Tensor) -> None:
        self._send(place, tag, GRADIENT, tensor.detach().contiguous())

    def receive_gradient(self, place: int, tag: int, like: Tensor) -> Tensor:
        """Receive the gradient of a tensor that this rank has sent."""
        gradient = torch.empty_like(like, memory_format=torch.contiguous_format)
        self._receive(place, tag, GRADIENT, gradient)
        return gradient

    def spread(self, tensor: Tensor | None, place: int) -> Tensor | None:
        """The tensor of one place, on all ranks of the pipeline. None: it has failed."""
        mine = self._team.place == place
        head = self._head(tensor)
        self._team.spread(head, place)
        made = tensor if mine else self._like(head)
        if made is not None:
            made = self._team.spread(made.detach().contiguous(), place)
        return made

    def finish(self) -> None:
        """Wait until everything is sent."""
        for work, _ in self._sent:
            work.wait()
        self._sent.clear()

    def _head(self, tensor: Tensor | None) -> Tensor:
        if tensor is None:
            numbers = [FAILED] * (MOST_DIMS + 2)
        else:
            shape = [*tensor.shape, *[0] * (MOST_DIMS - tensor.dim())]
            numbers = [DTYPES.index(tensor.dtype), tensor.dim(), *shape]
        return torch.tensor(numbers, dtype=torch.int64, device=self._device)

    def _like(self, head: Tensor) -> Tensor | None:
        dtype, dims, *shape = head.tolist()
        if dtype == FAILED:
            return None
        return torch.empty(shape[:dims], dtype=DTYPES[dtype], device=self._device)

    def _send(self, place: int, tag: int, kind: int, tensor: Tensor) -> None:
        work = dist.isend(tensor, self._team.ranks[place], tag=3 * tag + kind)
        assert work is not None
        self._sent.append((work, tensor))

    def _receive(self, place: int, tag: int, kind: int, tensor: Tensor) -> None:
        dist.recv(tensor, self._team.ranks[place], tag=3 * tag + kind)
