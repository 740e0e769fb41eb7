"""Gaps between two passes: random numbers that the script draws there, as for a subset or a model.

A gap lies between two passes. The first gap begins with the block, or with an epoch of
``s.epochs``. A replay skips the passes and runs the gaps, each with the random numbers that it had
in the earlier run.
"""

from __future__ import annotations

from types import FrameType
from typing import Any, TypedDict

from torchbus.plugin import Context

from torchbus_checkpoint.loop import scopes
from torchbus_checkpoint.state.plain import copied, digest, encode


class Standing(TypedDict):
    """The states of all generators at a moment.

    ``random`` has the session's streams, ``own`` those that variables name, by place and name.
    """

    random: dict[str, Any]
    own: dict[tuple[str, str], object]


class Gap(TypedDict, total=False):
    """What is recorded of a gap; empty if the gap is unknown.

    ``start``: the generators at its begin. ``ends``: a digest of each at its end. ``drawn``: the
    names of those that had moved.
    """

    start: Standing
    ends: dict[str, str]
    drawn: list[str]


UNKNOWN: Gap = {}


class Gaps:
    """Random states at the start of this gap.

    ``is_open``: no pass has begun since. ``fetched_ahead``: a wrapper had read the last pass ahead
    of the loop. ``saves``: how often the script has called ``s.save`` in this gap.
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
        """Continue a gap of an earlier run: its start, and how often it had called ``s.save``."""
        self._start, self.saves = start, saves
        self.is_open, self.fetched_ahead = start is not None, False
        self._session.random.mark()

    def forget(self) -> None:
        """Mark this gap as unknown."""
        self.go_on(None)

    @property
    def start(self) -> Standing | None:
        """The start of the gap, if it is open."""
        return self._start if self.is_open else None

    def ended(self, frames: list[FrameType]) -> Gap | None:
        """Close the gap as a pass begins; return its draws: None for none, or ``UNKNOWN``."""
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
        return {"random": streams, "own": dict(scopes.generators_in(frames))}


def differing(saved: Gap | None, now: Gap | None) -> list[str]:
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
    """Return the states of torch, Python and NumPy in all lasting streams, and of variables."""
    found: dict[str, Any] = {
        f"{name} (in {place})": state for (place, name), state in standing["own"].items()
    }
    for name, stream in sorted(standing["random"]["streams"].items()):
        for kind, state in stream.items() if name != "evaluation" else ():
            found.setdefault(kind, []).append(state)
    return found
