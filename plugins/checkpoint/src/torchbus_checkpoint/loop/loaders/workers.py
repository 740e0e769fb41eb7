"""When persistent workers were started. They draw their seed once, in their loader's first pass."""

from __future__ import annotations

from torchbus_checkpoint.loop.values import same
from torchbus_checkpoint.state.plain import State


class Workers:
    """The random numbers at the start of each loader's workers, by what the loader is over.

    They are None if the run started workers of several loaders over the same.
    """

    def __init__(self) -> None:
        self._begun: dict[str, State | None] = {}
        self._earlier: dict[str, State | None] = {}

    def state(self) -> dict[str, State | None]:
        return self._earlier | self._begun

    def load(self, saved: dict[str, State | None]) -> None:
        """Take over what an earlier run has started."""
        self._earlier = dict(saved)

    def begin(self, over: str, now: State) -> State | None:
        """A loader starts its workers in this session.

        Returns the random numbers at their start in an earlier run, if these differ from ``now``.
        """
        before, is_first = self._earlier.pop(over, None), over not in self._begun
        self._begun[over] = (before or now) if is_first else None
        return before if before is not None and not same(before, now) else None
