"""Ranks that go different ways are found out before they gather or reduce different things."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor
from torchbus import Session, hookimpl
from torchbus.errors import RanksDiverged
from torchbus.launch.guard import shut, sockets_opened

REMEDY = "Parameters are gathered from all ranks, so that all have to do the same: leave no rank out, or use strategy='ddp'"


class Agreement:
    """Has connections of its own: there a collective of one rank never meets another one of another rank, which aborts gloo, hangs NCCL,
    or, where the sizes agree by chance, mixes up what is sent."""

    def __init__(self, session: Session) -> None:
        self._session = session
        before = sockets_opened()
        self._group: Any = dist.new_group(backend="gloo", timeout=session.timeout)
        own = sockets_opened() - before
        assert session.job is not None
        session.job.guard.on_release(lambda: shut(own))
        session.bus.register(self, "fsdp.agreement")
        session.on_close.callback(self._forget)
        self._passed = 0
        self._steps = 0
        self._numbers = torch.zeros(2, dtype=torch.int64)

    @hookimpl
    def after_optimizer_step(self) -> None:
        self._steps += 1

    def passing(self, what: str) -> None:
        """To be compared when the ranks meet next."""
        self._passed = crc32(what.encode(), self._passed)

    def meet(self, what: str) -> None:
        """Raises RanksDiverged, on all ranks, where one has come with something else, or by another way."""
        what = f"{what}, after {self._steps} optimizer steps"
        mine = crc32(what.encode(), self._passed)
        self._passed = 0
        self._steps = 0
        self._numbers[0], self._numbers[1] = mine, -mine
        dist.all_reduce(self._numbers, dist.ReduceOp.MAX, group=self._group)
        if self._numbers.tolist() != [mine, -mine]:
            self._raise(what)

    def total(self, numbers: Tensor) -> Any:
        """Add up a tensor on the CPU over ranks, in place: it is done once ``wait()`` of what is returned has come back."""
        return dist.all_reduce(numbers, group=self._group, async_op=True)

    def _forget(self) -> None:
        """A process that is forked later and collects this garbage would wait for the group's threads, which it does not have."""
        self._group = None

    def _raise(self, what: str) -> None:
        told: list[str] = [""] * self._session.world_size
        dist.all_gather_object(told, what, group=self._group)
        if len(set(told)) == 1:
            raise RanksDiverged(f"at {what} the ranks had computed different parts of the model before. {REMEDY}")
        places = "; ".join(f"rank {rank} at {place}" for rank, place in enumerate(told))
        raise RanksDiverged(f"the ranks are at different places of the loop: {places}. {REMEDY}")
