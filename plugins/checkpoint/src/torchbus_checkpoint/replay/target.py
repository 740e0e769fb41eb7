"""The place in the script where a checkpoint was written, which a replay leads the loop to."""

from __future__ import annotations

from torchbus_checkpoint.loop.loaders.passes import OpenPass
from torchbus_checkpoint.loop.position import Position
from torchbus_checkpoint.replay import history
from torchbus_checkpoint.replay.gaps import Gap, Standing
from torchbus_checkpoint.replay.history import Pass, Section
from torchbus_checkpoint.state.plain import State

Key = tuple[Section, int]


class Target:
    """``saved`` is a ``Position.state()``. ``position`` is where the script is now."""

    def __init__(self, saved: State, position: Position) -> None:
        self._position = position
        self._loop_ends: dict[int, int] = dict(saved["loop_ends"])
        self.section: Section = tuple(saved["section"])
        self.passes = history.read(saved)
        self.open: dict[Key, State] = {
            (tuple(one["section"]), one["ordinal"]): one for one in saved["open"]
        }
        self.ended: bool = saved["ended"]
        self.gap: Standing | None = saved.get("gap")
        self.saves: int = saved.get("saves", 0)

    # Epochs of s.epochs --------------------------------------------------------------------------

    def first_epoch(self, number: int, count: int) -> int:
        """Return the first epoch of the loop of this number, which has ``count`` epochs."""
        loop, epoch = self.section
        if loop == number:
            return count if self.ended else epoch
        if loop < number:
            return 0
        end = self._loop_ends[number]
        nothing_since = self.ended or not self.passes[self.section]
        # if the loop has more epochs than before, it continues at its old end
        return end if loop == number + 1 and end >= 0 and nothing_since else count

    def is_behind(self, section: Section) -> bool:
        """Whether a section comes after the target."""
        loop, epoch = section
        return section > self.section or epoch >= self._loop_ends.get(loop, epoch + 1) >= 0

    def is_at_begin_of(self, section: Section) -> bool:
        """Whether the target comes before the first pass of this section."""
        return section == self.section and (self.ended or not self.passes[section])

    # Passes --------------------------------------------------------------------------------------

    @property
    def key(self) -> Key:
        """The next pass that the script begins."""
        return self._position.section, self._position.passes_begun

    @property
    def next_pass(self) -> Pass | None:
        """The next pass in this section, as the earlier run has noted it."""
        known = self.passes.get(self._position.section, [])
        return next(iter(known[self._position.passes_begun :]), None)

    @property
    def is_in_this_gap(self) -> bool:
        """Whether the earlier run has begun no further pass in this section."""
        return self._position.section == self.section and self.next_pass is None

    @property
    def next_start(self) -> Standing | None:
        """The random numbers at the begin of this gap in the earlier run."""
        if self.is_in_this_gap:
            return self.gap
        gap: Gap | None = None if self.next_pass is None else self.next_pass.gap
        return gap.get("start") if gap else None

    def is_before_training(self, one: OpenPass) -> bool:
        """Whether a pass came before the first step of the run."""
        passes = self.passes.get(one.section, [])
        return 0 <= one.ordinal < len(passes) and passes[one.ordinal].before_training
