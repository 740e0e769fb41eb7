"""One recording of torch.profiler, step by step."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress

import torch
from torch.profiler import ProfilerActivity, profile, schedule, supported_activities

from torchbus_profile.plan import Plan


class Recording:
    """Warms the profiler up, records some steps, and hands it to ``ready``.

    Begin and end it in the thread of the loop.
    """

    def __init__(
        self, plan: Plan, device: torch.device, ready: Callable[[profile, int], None]
    ) -> None:
        """``ready`` gets the profiler and the number of steps that it has recorded."""
        self._left = plan.warmup + plan.active
        self._active = plan.active
        self._ready = ready
        wanted = {ProfilerActivity.CPU}
        self._profiler = profile(
            activities=wanted if device.type == "cpu" else wanted | set(supported_activities()),
            schedule=schedule(wait=0, warmup=plan.warmup, active=plan.active, repeat=1),
            **plan.facts,
        )
        with warnings.catch_warnings():
            # torch 2.11 warns at the first cycle of what holds for later ones
            warnings.filterwarnings("ignore", ".*Profiler clears events")
            self._profiler.start()

    @property
    def is_over(self) -> bool:
        return self._left <= 0

    def stepped(self) -> None:
        """A real step is over."""
        self._left -= 1
        self._profiler.step()
        if self.is_over:
            self._profiler.stop()
            self._ready(self._profiler, self._active)

    def drop(self) -> None:
        """Something has failed: let go of the profiler."""
        with suppress(Exception):
            self._profiler.stop()

    def cut(self) -> None:
        """The loop ends, perhaps in the middle."""
        recorded = self._active - self._left
        self._left = 0
        self._profiler.stop()
        if recorded > 0:
            self._ready(self._profiler, recorded)
