"""When workers that persist were begun: they draw their seed once, in the first pass of their loader that the run ever made."""

from __future__ import annotations

from typing import Any

from torchbus_checkpoint.loop.variables import same

State = dict[str, Any]


class Workers:
    """The random numbers at that moment, by what the loader is over; None where several loaders of one kind were begun, one after another."""

    def __init__(self) -> None:
        self._begun: dict[str, State | None] = {}
        self._earlier: dict[str, State | None] = {}

    def state(self) -> dict[str, State | None]:
        return self._earlier | self._begun

    def load(self, saved: dict[str, State | None]) -> None:
        """What an earlier run has begun."""
        self._earlier = dict(saved)

    def begin(self, over: str, now: State) -> State | None:
        """A loader begins its workers in this session. Returns the random numbers that these had in an earlier run, if they were begun in
        another pass than this one."""
        before, is_first = self._earlier.pop(over, None), over not in self._begun
        self._begun[over] = (before or now) if is_first else None
        return before if before is not None and not same(before, now) else None
