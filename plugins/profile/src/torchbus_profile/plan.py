"""Parses ``profile=``: which steps are recorded, and how."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule, supported_activities
from torchbus.plugin import UsageError, expect


class Recording:
    """Warms the profiler up, records some steps, and passes the profiler to ``ready``.

    Make and end it in the loop's thread.
    """

    def __init__(
        self, plan: ProfilePlan, device: torch.device, ready: Callable[[profile, int], None]
    ) -> None:
        """Start the profiler. ``ready`` gets it, and the number of recorded steps."""
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
            # torch 2.11 warns in the first cycle, although this concerns only later ones
            warnings.filterwarnings("ignore", ".*Profiler clears events")
            self._profiler.start()

    @property
    def is_over(self) -> bool:
        return self._left <= 0

    def stepped(self) -> None:
        """Count a real step. After the last one, stop the profiler and call ``ready``."""
        self._left -= 1
        self._profiler.step()
        if self.is_over:
            self._profiler.stop()
            self._ready(self._profiler, self._active)

    def drop(self) -> None:
        """Release the profiler after a failure."""
        with suppress(Exception):
            self._profiler.stop()

    def cut(self) -> None:
        """Stop at the end of the loop, and call ``ready`` if some steps were recorded."""
        recorded = self._active - self._left
        self._left = 0
        self._profiler.stop()
        if recorded > 0:
            self._ready(self._profiler, recorded)


STEPS: dict[str, Any] = {"skip_first": 10, "wait": 0, "warmup": 2, "active": 3, "repeat": 1}
LEAST = {"skip_first": 0, "wait": 0, "warmup": 1, "active": 1, "repeat": 0}
FACTS = ("record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules")


@dataclass(frozen=True)
class ProfilePlan:
    """Which real steps are recorded, with ``facts`` as keywords of ``torch.profiler.profile``."""

    skip_first: int
    wait: int
    warmup: int
    active: int
    repeat: int
    facts: Mapping[str, Any] = field(default_factory=dict)

    def begins(self, steps: int) -> bool:
        """Whether a recording, with its warm-up, begins after ``steps`` real steps."""
        cycle, since = self.wait + self.warmup + self.active, steps - self.skip_first
        number, within = divmod(since, cycle)
        return since >= 0 and within == self.wait and (not self.repeat or number < self.repeat)

    @property
    def first_step(self) -> int:
        """The number of the first recorded step, counted from 1."""
        return self.skip_first + self.wait + self.warmup + 1

    def described(self) -> str:
        steps = f"real steps {self.first_step} to {self.first_step + self.active - 1}"
        every = self.wait + self.warmup + self.active
        if self.repeat == 0:
            steps += f", and again every {every}"
        elif self.repeat > 1:
            steps += f", and again every {every}, {self.repeat} times"
        return ", ".join((steps, *self.facts))


TIMERS = ("simple", "advanced")
"""Values of Lightning's ``profiler=`` that time the whole run."""


def plan(given: object) -> ProfilePlan | None:
    """Parse the option ``profile``. None means that nothing is recorded.

    Raises UsageError for another type or value.
    """
    if given in TIMERS:
        raise UsageError(
            f"profile={given!r}: it must be True, for a table of three steps. For the seconds of"
            " each function over the whole run, use `python -m cProfile -s cumtime`"
        )
    expect(
        "profile", given, (bool, Mapping, type(None)), 'True, or a dict such as {"skip_first": 100}'
    )
    if not isinstance(given, Mapping):
        return ProfilePlan(**STEPS) if given else None
    known = (*STEPS, *FACTS)
    unknown = [word for word in given if word not in known]
    if unknown:
        raise UsageError(f"profile={dict(given)}: unknown {unknown[0]!r}: use {', '.join(known)}")
    for word, least in LEAST.items():
        steps = given.get(word, least)
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < least:
            raise UsageError(
                f"profile={dict(given)}: {word} must be a number of real steps, at least {least}"
            )
    for word in FACTS:
        if not isinstance(given.get(word, True), bool):
            raise UsageError(f"profile={dict(given)}: {word} must be True or False")
    steps = {word: given.get(word, usual) for word, usual in STEPS.items()}
    return ProfilePlan(**steps, facts={word: True for word in FACTS if given.get(word)})
