"""Ranks that go different ways are found out before one of them waits for the other for good."""

from __future__ import annotations

import pickle
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist
from torchbus.plugin import Context, RanksDiverged, hookimpl

from torchbus_strategy.collectives import all_gather_object
from torchbus_strategy.groups import guarded_groups

REMEDY = (
    "The layers of a model are on different ranks, so that all have to do the same: leave no rank"
    " out, or use strategy='ddp'"
)


class Meeting:
    """Compares what the ranks are about to do, over connections of its own.

    There, a collective of one rank never meets another collective of another rank.
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

    def meet(self, what: str, fails: bool = False) -> bool:
        """Meet all other ranks. Returns whether this one ``fails``, or another one.

        Raises RanksDiverged, on all ranks, if one of them is here for something else.
        """
        return self._meet(what, fails, *self._groups[0])

    def meet_in_pipeline(self, what: str) -> None:
        """Meet the other ranks of this pipeline."""
        self._meet(what, False, *self._groups[-1])

    def _meet(self, what: str, fails: bool, group: dist.ProcessGroup, ranks: list[int]) -> bool:
        what = f"{what}, after {self._steps} optimizer steps"
        waits_already = self._job.waiting is not None
        if not waits_already:
            self._job.wait_in(what)
        told = torch.empty(len(ranks), 2, dtype=torch.int64)
        mine = torch.tensor([crc32(what.encode()), fails])
        dist.all_gather(list(told), mine, group=group)
        if not waits_already:
            self._job.go_on()
        digests, failures = told.T.tolist()
        if len(set(digests)) > 1:
            self._raise(what, group, ranks)
        return any(failures)

    def told_in_pipeline(self, what: object) -> list[Any]:
        """What every rank of this pipeline tells, by place. All of them call it."""
        group, ranks = self._groups[-1]
        return list(all_gather_object(what, len(ranks), group))

    def told_by_first(self, what: Any) -> Any:
        """What rank 0 tells all ranks. All of them call it."""
        group, ranks = self._groups[0]
        return all_gather_object(what, len(ranks), group)[0]

    def raise_common(self, error: BaseException | None, everywhere: bool = False) -> None:
        """Raise one error on all ranks of the pipeline (``everywhere``: of the session), which all
        call it: that of the first rank that has one.
        """
        group, ranks = self._groups[0 if everywhere else -1]
        told = all_gather_object(None if error is None else _sendable(error), len(ranks), group)
        if error is not None:
            raise error
        raise next(one for one in told if isinstance(one, BaseException))

    def _raise(self, what: str, group: dist.ProcessGroup, ranks: list[int]) -> None:
        told = all_gather_object(what, len(ranks), group)
        places = "; ".join(f"rank {rank} at {one}" for rank, one in zip(ranks, told, strict=True))
        raise RanksDiverged(f"the ranks are at different places of the loop: {places}. {REMEDY}")


def _sendable(error: BaseException) -> BaseException:
    """The error, without its traceback, or one that can be sent to other ranks."""
    try:
        made = type(error)(str(error))
        pickle.loads(pickle.dumps(made))
    except Exception:
        made = RuntimeError(f"{type(error).__name__}: {error}")
    return made
