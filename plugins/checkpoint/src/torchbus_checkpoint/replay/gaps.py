"""What the script draws between two passes over loaders: a subset per epoch, the weights of the next fold's model.

A gap lies between two passes, or between the begin of the block, or of an epoch of ``s.epochs``, and the first pass in it. In a later
run the passes are left out, and what lies between them is run: with the random numbers as they stood, so that it does the same again.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

from torchbus.plugin import Context

from torchbus_checkpoint.loop import variables
from torchbus_checkpoint.state.hashes import digest
from torchbus_checkpoint.state.plain import copied, encode

Gap = dict[str, Any]  # "start": a ``Standing``; "ends": by generator, a digest of where it stood when the pass began; "drawn": those that had moved
Standing = dict[str, Any]  # "random": the session's streams; "own": the generators that variables name, by place and name
UNKNOWN: Gap = {}


class Gaps:
    """Where the generators stood when the gap began. ``is_open``: no pass has begun since. ``fetched_ahead``: the pass that ended last was read
    ahead of the loop. ``saves``: how often the script has called ``s.save`` in it."""

    def __init__(self, session: Context) -> None:
        self._session = session
        self._start: Standing | None = None
        self.is_open = self.fetched_ahead = False
        self.saves = 0

    def begin(self, frames: list[FrameType], *, is_open: bool = True, fetched_ahead: bool = False) -> None:
        self._start = self.standing(frames)
        self._session.random.mark()
        self.is_open, self.fetched_ahead, self.saves = is_open, fetched_ahead, 0

    def go_on(self, start: Standing | None, saves: int = 0) -> None:
        """The gap began in an earlier run, where they stood at ``start``; ``s.save`` was called in it so often."""
        self._start, self.is_open, self.fetched_ahead, self.saves = start, start is not None, False, saves
        self._session.random.mark()

    def forget(self) -> None:
        """Nothing is known of this gap."""
        self.go_on(None)

    @property
    def start(self) -> Standing | None:
        """Of the gap that is open."""
        return self._start if self.is_open else None

    def ended(self, frames: list[FrameType]) -> Gap | None:
        """What was drawn in it, now that a pass begins: None for nothing, ``UNKNOWN`` where that can't be said."""
        if self._start is None:
            return UNKNOWN
        before, now = _by_generator(self._start), _by_generator(self.standing(frames))
        ends = {name: digest(now[name]) for name in before.keys() & now.keys()}
        drawn = sorted(name for name, end in ends.items() if digest(before[name]) != end)
        drawn += ["in evaluation"] if self._session.random.drew_in_evaluation else []
        return {"start": copied(self._start), "ends": ends, "drawn": drawn} if drawn else None

    def standing(self, frames: list[FrameType]) -> Standing:
        """Where they stand now."""
        streams = encode(self._session.random.state(), "the random state")
        return {"random": streams, "own": dict(variables.generators_in(frames))}


def differing(saved: Gap | None, now: Gap | None) -> list[str]:
    """The generators that were drawn from otherwise than in the earlier run."""
    if UNKNOWN in (saved, now):
        return []
    if saved is None or now is None:
        return [name for gap in (saved, now) if gap is not None for name in gap["drawn"]]
    return sorted(name for name in saved["ends"].keys() & now["ends"].keys() if saved["ends"][name] != now["ends"][name])


def _by_generator(standing: Standing) -> dict[str, Any]:
    """torch's, Python's and NumPy's, each in all streams that last; and those of variables."""
    found: dict[str, Any] = {f"{name} (in {place})": state for (place, name), state in standing["own"].items()}
    for name, stream in sorted(standing["random"]["streams"].items()):
        for kind, state in stream.items() if name != "evaluation" else ():
            found.setdefault(kind, []).append(state)
    return found
