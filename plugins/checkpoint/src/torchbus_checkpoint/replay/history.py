"""History of passes over loaders, in the order in which a later run begins them.

A pass inside the body of another one (an evaluation in the middle of an epoch) does not count: if a
replay skips or continues the outer pass, the loop does not begin the inner one again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import FrameType

from torchbus_checkpoint.loop import frames as checkpoint_frames
from torchbus_checkpoint.loop.frames import Loop
from torchbus_checkpoint.replay.gaps import UNKNOWN, Gap
from torchbus_checkpoint.state.plain import State

Section = tuple[int, int]
NESTED = -1


@dataclass
class Pass:
    """A pass: its data, whether it came before the first step, and the gap before it."""

    over: str
    before_training: bool
    gap: Gap | None = None


@dataclass
class History:
    """The passes in the current section, and in the sections outside of ``s.epochs``."""

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
        """Record a pass. Return its number in the section; ``NESTED`` inside another pass."""
        if self.is_nested(frames):
            return NESTED
        self.here.append(new)
        return len(self.here) - 1

    def is_nested(self, frames: list[FrameType]) -> bool:
        return bool(self._driven) and not self._driven.isdisjoint(
            checkpoint_frames.loops(frames, standing=False)
        )

    def asked(self, frames: list[FrameType]) -> None:
        """Record that a pass gives the next item to the loops that are asking for one."""
        self._driven.update(checkpoint_frames.loops(frames, standing=True))

    def adopt(self, saved: dict[Section, list[Pass]]) -> None:
        """Replace the replayed passes by the earlier run's records of them."""
        for section, passes in self.passes.items():
            known = saved.get(section, [])[: len(passes)]
            passes[: len(known)] = known

    # State ---------------------------------------------------------------------------------------

    def state(self) -> State:
        return {
            "sections": [
                [section, [one.over for one in passes], [one.before_training for one in passes]]
                for section, passes in self.passes.items()
            ],
            "gaps": [
                [section, number, one.gap]
                for section, passes in self.passes.items()
                for number, one in enumerate(passes)
                if one.gap is not None
            ],
        }


def read(saved: State) -> dict[Section, list[Pass]]:
    """Read what ``state`` has written. Older checkpoints have no gaps."""
    gap = None if "gaps" in saved else UNKNOWN
    found = {
        tuple(section): [Pass(*facts, gap) for facts in zip(over, before, strict=True)]
        for section, over, before in saved["sections"]
    }
    for section, number, gap in saved.get("gaps", ()):
        found[tuple(section)][number].gap = gap
    return found
