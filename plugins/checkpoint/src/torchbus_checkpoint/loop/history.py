"""History of passes over loaders, in the order in which a later run begins them.

A pass inside the body of another pass (an evaluation in the middle of an epoch) is not recorded: if
a replay skips or continues the outer pass, the loop does not begin the inner pass again.

A gap is the code between two passes. The first gap begins with the block, or with an epoch of
``s.epochs``. In a gap the script may draw random numbers, for a subset or a model. A replay skips
the passes and runs the gaps, each with the random numbers of the earlier run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TypedDict

from torchbus.plugin import Context

from torchbus_checkpoint.loop import frames as checkpoint_frames
from torchbus_checkpoint.loop import variables
from torchbus_checkpoint.loop.frames import Loop
from torchbus_checkpoint.loop.variables import Numbers
from torchbus_checkpoint.state.plain import State, copied, digest, encode


class Standing(TypedDict):
    """A snapshot of the states of all random generators.

    ``random`` has the session's streams. ``own`` has the generators that variables name, by place
    and name.
    """

    random: dict[str, Any]
    own: dict[tuple[str, str], object]


class RecordedGap(TypedDict, total=False):
    """What is recorded of a gap. The dict is empty if the gap is unknown.

    ``start`` has the states of the generators at the start of the gap. ``ends`` has a digest of
    each state at its end. ``drawn`` has the names of the generators whose state differs.
    """

    start: Standing
    ends: dict[str, str]
    drawn: list[str]


UNKNOWN: RecordedGap = {}


class Gaps:
    """The random states at the start of the current gap, and what happens in the gap.

    ``is_open`` is True until a pass begins. ``fetched_ahead`` is True if a wrapper read the last
    pass ahead of the loop. ``saves`` counts the script's calls of ``s.save`` in this gap.
    """

    def __init__(self, session: Context) -> None:
        self._session = session
        self._start: Standing | None = None
        self.is_open = self.fetched_ahead = False
        self.saves = 0

    def begin(
        self, frames: list[FrameType], *, is_open: bool = True, fetched_ahead: bool = False
    ) -> None:
        self._start = self.standing(frames)
        self._session.random.mark()
        self.is_open, self.fetched_ahead, self.saves = is_open, fetched_ahead, 0

    def go_on(self, start: Standing | None, saves: int = 0) -> None:
        """Continue a gap of an earlier run, from its ``start`` and its count of ``s.save`` calls.

        ``start`` is None if the gap is unknown.
        """
        self._start, self.saves = start, saves
        self.is_open, self.fetched_ahead = start is not None, False
        self._session.random.mark()

    def forget(self) -> None:
        """Mark this gap as unknown."""
        self.go_on(None)

    @property
    def start(self) -> Standing | None:
        """The random states at the start of the gap, or None if a pass has begun since."""
        return self._start if self.is_open else None

    def ended(self, frames: list[FrameType]) -> RecordedGap | None:
        """Return the record of the gap when a pass begins.

        Returns None if the script has drawn no random numbers in the gap, and ``UNKNOWN`` if the
        states at its start are unknown.
        """
        if self._start is None:
            return UNKNOWN
        before, now = _by_generator(self._start), _by_generator(self.standing(frames))
        ends = {name: digest(now[name]) for name in before.keys() & now.keys()}
        drawn = sorted(name for name, end in ends.items() if digest(before[name]) != end)
        drawn += ["in evaluation"] if self._session.random.drew_in_evaluation else []
        return {"start": copied(self._start), "ends": ends, "drawn": drawn} if drawn else None

    def standing(self, frames: list[FrameType]) -> Standing:
        """Return the states of all generators now."""
        streams = encode(self._session.random.state(), "the random state")
        return {"random": streams, "own": dict(variables.generators_in(frames))}


def differing(saved: RecordedGap | None, now: RecordedGap | None) -> list[str]:
    """Return the generators whose draws differ from the earlier run."""
    if UNKNOWN in (saved, now):
        return []
    if saved is None or now is None:
        return [name for gap in (saved, now) if gap is not None for name in gap["drawn"]]
    return sorted(
        name
        for name in saved["ends"].keys() & now["ends"].keys()
        if saved["ends"][name] != now["ends"][name]
    )


def _by_generator(standing: Standing) -> dict[str, Any]:
    """Return the states of the generators that variables name, and of the session's streams.

    The stream for evaluation is left out.
    """
    found: dict[str, Any] = {
        f"{name} (in {place})": state for (place, name), state in standing["own"].items()
    }
    for name, stream in sorted(standing["random"]["streams"].items()):
        for kind, state in stream.items() if name != "evaluation" else ():
            found.setdefault(kind, []).append(state)
    return found


Section = tuple[int, int]
NESTED = -1


@dataclass
class RecordedPass:
    """A pass: its data, whether it came before the first step, and the gap before it.

    ``trained`` is True if a backward used its batches. ``counted`` has the numbers that the loop
    changed during the pass, with their values at its end.
    """

    over: str
    before_training: bool
    gap: RecordedGap | None = None
    trained: bool = False
    counted: Numbers = field(default_factory=dict)


@dataclass
class History:
    """The passes in the current section, and in the sections outside of ``s.epochs``."""

    section: Section = (0, 0)
    passes: dict[Section, list[RecordedPass]] = field(default_factory=lambda: {(0, 0): []})
    _driven: set[Loop] = field(default_factory=set)

    def enter(self, section: Section) -> None:
        self.passes = {old: passes for old, passes in self.passes.items() if old[0] % 2 == 0}
        self.section = section
        self.passes.setdefault(section, [])
        self._driven = set()

    @property
    def here(self) -> list[RecordedPass]:
        return self.passes[self.section]

    def begin(self, new: RecordedPass, frames: list[FrameType]) -> int:
        """Record a pass, and return its number in the section.

        A pass inside another pass is not recorded, and this returns ``NESTED``.
        """
        if self.is_nested(frames):
            return NESTED
        self.here.append(new)
        return len(self.here) - 1

    def is_nested(self, frames: list[FrameType]) -> bool:
        return bool(self._driven) and not self._driven.isdisjoint(
            checkpoint_frames.loops(frames, standing=False)
        )

    def asked(self, frames: list[FrameType]) -> None:
        """Record that the loops that are asking for an item get it from the current pass."""
        self._driven.update(checkpoint_frames.loops(frames, standing=True))

    def adopt(self, saved: dict[Section, list[RecordedPass]]) -> None:
        """Replace the records of replayed passes with those of the earlier run."""
        for section, passes in self.passes.items():
            known = saved.get(section, [])[: len(passes)]
            passes[: len(known)] = known

    # State ---------------------------------------------------------------------------------------

    def state(self) -> State:
        every = [
            (section, number, one)
            for section, passes in self.passes.items()
            for number, one in enumerate(passes)
        ]
        return {
            "sections": [
                [section, [one.over for one in passes], [one.before_training for one in passes]]
                for section, passes in self.passes.items()
            ],
            "trained": [[section, number] for section, number, one in every if one.trained],
            "gaps": [[*at, one.gap] for *at, one in every if one.gap is not None],
            "counted": [[*at, one.counted] for *at, one in every if one.counted],
        }


def read(saved: State) -> dict[Section, list[RecordedPass]]:
    """Read what ``state`` has written. Older checkpoints have no gaps."""
    gap = None if "gaps" in saved else UNKNOWN
    found = {
        tuple(section): [RecordedPass(*facts, gap) for facts in zip(over, before, strict=True)]
        for section, over, before in saved["sections"]
    }
    for section, number, gap in saved.get("gaps", ()):
        found[tuple(section)][number].gap = gap
    for section, number in saved.get("trained", ()):
        found[tuple(section)][number].trained = True
    for section, number, counted in saved.get("counted", ()):
        found[tuple(section)][number].counted = counted
    return found
