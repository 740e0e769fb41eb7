"""Detects diverging ranks before they deadlock."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor
from torchbus.plugin import Context, RanksDiverged, hookimpl

from torchbus_strategy.collectives import all_gather_object
from torchbus_strategy.groups import guarded_groups

REMEDY = (
    "The layers of a model are on different ranks, so that all have to do the same: leave no rank"
    " out, or use strategy='ddp'"
)


class CheckedBarrier:
    """Verifies over separate process groups that all ranks are about to run the same collective.

    In these groups, only the barrier's collectives can pair up.
    """

    def __init__(self, session: Context, pipelines: list[list[int]]) -> None:
        assert session.job is not None
        self._session, self._job = session, session.job
        everyone = list(range(session.world_size))
        with guarded_groups(session):
            self._groups = [
                (dist.new_group(ranks, backend="gloo", timeout=session.timeout), ranks)
                for ranks in ([everyone] if len(pipelines) == 1 else [everyone, *pipelines])
            ]
        self._groups = [pair for pair in self._groups if session.rank in pair[1]]
        session.on_close.callback(self._groups.clear)
        session.bus.register(self, "pipeline.meeting")
        self._steps = 0

    @hookimpl
    def after_optimizer_step(self) -> None:
        self._steps += 1

    def sync(self, what: str, fails: bool = False) -> bool:
        """Wait for all ranks. Returns whether any rank ``fails``.

        ``what`` describes the place in the loop. Raises RanksDiverged, on all ranks, if a rank is
        at another place.
        """
        return self._sync(what, fails, *self._groups[0])

    def sync_in_pipeline(self, what: str) -> None:
        """Wait for the other ranks of this pipeline."""
        self._sync(what, False, *self._groups[-1])

    def _sync(self, what: str, fails: bool, group: dist.ProcessGroup, ranks: list[int]) -> bool:
        what = f"{what}, after {self._steps} optimizer steps"
        waits_already = self._job.waiting is not None
        if not waits_already:
            self._job.wait_in(what)
        reported = torch.empty(len(ranks), 2, dtype=torch.int64)
        mine = torch.tensor([crc32(what.encode()), fails])
        dist.all_gather(list(reported), mine, group=group)
        if not waits_already:
            self._job.go_on()
        digests, failures = reported.T.tolist()
        if len(set(digests)) > 1:
            self._raise(what, group, ranks)
        return any(failures)

    def gather_in_pipeline(self, what: object) -> list[Any]:
        """Return the values of this pipeline's ranks, by place. All its ranks must call this."""
        group, ranks = self._groups[-1]
        return list(all_gather_object(what, len(ranks), group))

    def broadcast(self, what: Any) -> Any:
        """Return rank 0's value. All ranks must call this."""
        group, ranks = self._groups[0]
        return all_gather_object(what, len(ranks), group)[0]

    def raise_common(self, error: BaseException | None, everywhere: bool = False) -> None:
        """Raise an error on all ranks of the pipeline or, if ``everywhere``, of the session.

        All these ranks must call this. A rank without an ``error`` raises the error of the first
        rank that has one.
        """
        group, ranks = self._groups[0 if everywhere else -1]
        reported = all_gather_object(None if error is None else _sendable(error), len(ranks), group)
        if error is not None:
            raise error
        raise next(one for one in reported if isinstance(one, BaseException))

    def _raise(self, what: str, group: dist.ProcessGroup, ranks: list[int]) -> None:
        reported = all_gather_object(what, len(ranks), group)
        places = "; ".join(
            f"rank {rank} at {one}" for rank, one in zip(ranks, reported, strict=True)
        )
        raise RanksDiverged(f"the ranks are at different places of the loop: {places}. {REMEDY}")


def _sendable(error: BaseException) -> BaseException:
    """Return the error without its traceback, or a RuntimeError if it can't be pickled."""
    try:
        made = type(error)(str(error))
        pickle.loads(pickle.dumps(made))
    except Exception:
        made = RuntimeError(f"{type(error).__name__}: {error}")
    return made


@dataclass(frozen=True)
class PipelineRanks:
    """The ranks of one pipeline, in which this process is at ``place``.

    ``ranks`` are the global ranks by place, and ``parts`` is the number of pipelines. ``group`` has
    the ranks of this pipeline, or is None if that is all ranks. ``replicas`` has the ranks at the
    same place of all pipelines, or is None if there is only one pipeline.
    """

    place: int
    ranks: tuple[int, ...]
    parts: int
    group: dist.ProcessGroup | None
    replicas: dist.ProcessGroup | None

    @property
    def pipelines(self) -> list[list[int]]:
        """The global ranks of each pipeline."""
        return [list(range(part * self.size, (part + 1) * self.size)) for part in range(self.parts)]

    @property
    def size(self) -> int:
        return len(self.ranks)

    def spread(self, tensor: Tensor, place: int) -> Tensor:
        """Broadcast a tensor from one place. Other ranks pass a tensor of its shape to write to.

        All ranks of the pipeline must call this. Returns the tensor.
        """
        dist.broadcast(tensor, self.ranks[place], group=self.group)
        return tensor


def make_team(session: Context, size: int) -> PipelineRanks:
    """Make pipelines of ``size`` consecutive ranks. All ranks must call this."""
    world, place = session.world_size, session.world.member
    part, parts = session.world.data
    if parts == 1:
        return PipelineRanks(place, tuple(range(world)), 1, None, None)
    pipelines = [list(range(part * size, (part + 1) * size)) for part in range(parts)]
    replicas = [list(range(place, world, size)) for place in range(size)]
    with guarded_groups(session):
        groups = [
            dist.new_group(ranks, timeout=session.timeout) for ranks in [*pipelines, *replicas]
        ]
    return PipelineRanks(place, tuple(pipelines[part]), parts, groups[part], groups[parts + place])
