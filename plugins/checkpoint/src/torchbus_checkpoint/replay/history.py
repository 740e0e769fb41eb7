"""The passes over loaders that a run has made, in the order in which a later run will begin them.

A pass inside the body of another one (an evaluation in the middle of an epoch) does not count: where the outer one is left out, or
gone on with, the loop does not begin the inner one again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from torchbus_checkpoint.loop import counters
from torchbus_checkpoint.loop.counters import Loop
from torchbus_checkpoint.replay.gaps import UNKNOWN, Gap

Section = tuple[int, int]
State = dict[str, Any]
NESTED = -1


@dataclass
class Pass:
    """Over what it was, whether it came before the first step of the run, and what was drawn before it."""

    over: str
    before_training: bool
    gap: Gap | None = None


@dataclass
class History:
    """Of the sections that are still needed: the one that is running, and those between the loops of ``s.epochs``."""

    section: Section = (0, 0)
    passes: dict[Section, list[Pass]] = field(default_factory=lambda: {(0, 0): []})
    _driven: set[Loop] = field(default_factory=set)

    def enter(self, section: Section) -> None:
        self.passes = {old: passes for old, passes in self.passes.items() if old[0] % 2 == 0}
        self.section = section
        self.passes.setdefault(section, [])
        self._driven = set()

    @property
    def here(self) -> list[Pass]:
        return self.passes[self.section]

    def begin(self, new: Pass, frames: list[FrameType]) -> int:
        """Its number in the section, ``NESTED`` where it is inside another one."""
        if self.is_nested(frames):
            return NESTED
        self.here.append(new)
        return len(self.here) - 1

    def is_nested(self, frames: list[FrameType]) -> bool:
        return bool(self._driven) and not self._driven.isdisjoint(counters.loops(frames, standing=False))

    def asked(self, frames: list[FrameType]) -> None:
        """The loops that ask for their next item take it from a pass."""
        self._driven.update(counters.loops(frames, standing=True))

    def adopt(self, saved: dict[Section, list[Pass]]) -> None:
        """What this run has led its loop through is what the earlier one has noted of it."""
        for section, passes in self.passes.items():
            known = saved.get(section, [])[: len(passes)]
            passes[: len(known)] = known

    # State -----------------------------------------------------------------------------------------------------

    def state(self) -> State:
        return {
            "sections": [[section, [one.over for one in passes], [one.before_training for one in passes]]
                         for section, passes in self.passes.items()],
            "gaps": [[section, number, one.gap] for section, passes in self.passes.items() for number, one in enumerate(passes)
                     if one.gap is not None],
        }  # fmt: skip


def read(saved: State) -> dict[Section, list[Pass]]:
    """What ``state`` has written. Older checkpoints know nothing of gaps."""
    gap = None if "gaps" in saved else UNKNOWN
    found = {tuple(section): [Pass(*facts, gap) for facts in zip(over, before, strict=True)] for section, over, before in saved["sections"]}
    for section, number, gap in saved.get("gaps", ()):
        found[tuple(section)][number].gap = gap
    return found
