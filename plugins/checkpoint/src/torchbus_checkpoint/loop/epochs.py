"""``for epoch in s.epochs(10)``: an outermost loop that continues where an interrupted run was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from torchbus.plugin import Context

from torchbus_checkpoint.loop.position import Position
from torchbus_checkpoint.loop.steps import Steps
from torchbus_checkpoint.replay.replaying import Replay

LEFT = -1  # the end of a loop that was left by break


class Epochs:
    """Runs the loops, and numbers them in the order in which the script begins them.

    It calls ``boundary`` before each epoch.
    """

    def __init__(
        self, session: Context, position: Position, steps: Steps, boundary: Callable[[], None]
    ) -> None:
        self._session = session
        self._position = position
        self._steps = steps
        self._boundary = boundary
        self._begun = 0
        self._ends: dict[int, int | None] = {}
        self.replay: Replay | None = None

    def state(self) -> list[tuple[int, int | None]]:
        """Return the loops that have ended, and where."""
        return list(self._ends.items())

    def load(self, state: Iterable[tuple[int, int | None]]) -> None:
        self._ends = dict(state)

    def run(self, count: int) -> Iterator[int]:
        """Run the epochs of the next loop."""
        self._begun += 1
        return self._run(2 * self._begun - 1, count)

    def _run(self, number: int, count: int) -> Iterator[int]:
        self._steps.counts_passes = False
        epoch = self._first(number, count)
        self._ends[number] = LEFT
        try:
            while epoch < count and not self._session.bus.hook.end_epochs(epoch=epoch):
                self._enter((number, epoch))
                yield epoch
                epoch += 1
                self._steps.epoch_ended()
        except GeneratorExit:  # the loop was left by break
            self._position.enter((number + 1, 0))
            raise
        self._ends[number] = count
        self._enter((number + 1, 0))

    def _first(self, number: int, count: int) -> int:
        """Return the first epoch: not 0 if an earlier run has begun, or ended, this loop."""
        if self.replay is None or not self.replay.pending:
            return 0
        return self.replay.first_epoch(number, count)

    def _enter(self, section: tuple[int, int]) -> None:
        self._position.enter(section)
        if self.replay is not None and self.replay.pending:
            self.replay.enter(section)
        self._boundary()
