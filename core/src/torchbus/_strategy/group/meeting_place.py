"""Where ranks meet, before a collective that one of them might not call."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist

from torchbus._launch.store.roll_call import RollCall
from torchbus._session.context import Context
from torchbus._strategy.group.guarded import guarded_groups


class MeetingPlace:
    """A gloo group with connections of its own, made when the ranks first meet.

    There, a collective never meets another one of a rank that is elsewhere in the loop, which would
    abort gloo. Ranks that wait in different places are found by the guard.
    """

    def __init__(self, session: Context) -> None:
        assert session.job is not None
        self._session, self._job = session, session.job
        self._group: dist.ProcessGroup | None = None
        session.on_close.callback(self._forget)

    def meet(self, *what: object) -> None:
        """Wait until all ranks call it. ``what``: for the message, if one of them does not."""
        self._job.wait_in(*what)
        if self._group is None:
            self._wait_for_all()
            with guarded_groups(self._session):
                self._group = dist.new_group(backend="gloo", timeout=self._session.timeout)
        dist.all_reduce(torch.zeros(1), group=self._group)
        self._job.go_on()

    def _wait_for_all(self) -> None:
        """Wait where the guard can interrupt. Torch makes groups in native code."""
        world = self._session.world
        call = RollCall(world.shared, "meeting", world.rank, world.world_size)
        call.say()
        self._job.wait_until(lambda _: call.is_complete(), math.inf)

    def _forget(self) -> None:
        """Let go of the group: a process that is forked later does not have its threads."""
        self._group = None
