"""The target of a replay: the position in the script at which the checkpoint was written."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from torchbus.plugin import Context, LoaderIterator, UsageError, warn

from torchbus_checkpoint.loop import history
from torchbus_checkpoint.loop.frames import Counters, is_users, place, user_frames
from torchbus_checkpoint.loop.history import RecordedGap, RecordedPass, Section, Standing
from torchbus_checkpoint.loop.loaders import OpenPass, signature
from torchbus_checkpoint.loop.position import LoopPosition
from torchbus_checkpoint.state.plain import State


def continue_passes(
    position: LoopPosition,
    saved_open: dict[Key, State],
    heads: dict[str, int],
    scale: float,
    numbering: Numbering,
) -> None:
    """Skip the batches that the loop had used in each pass. Warn of a pass that is not open now."""
    for one in position.open:
        saved = saved_open.pop((one.section, one.ordinal), None)
        if saved is not None and one.alive is not None:
            count = int(saved["taken"] * scale)
            _skip(position, one, one.alive, saved, count)
            numbering.num_before = count
            position.expected_after = count + 1
            position.expected = {
                key: last + 1 for key, last in heads.items() if count and last in (count - 1, count)
            }
    for saved in saved_open.values():
        warn(
            f"a pass that had taken {saved['taken']} batches of a loader is not running where this"
            " run resumes: it starts again from its first batch"
        )


def _skip(
    position: LoopPosition, one: OpenPass, iterator: LoaderIterator, saved: State, count: int
) -> None:
    one.started, one.wanted = saved["started"], saved["wanted"]
    one.generators = saved.get("own", {})
    if saved["wanted"] is not None and not iterator.num_yielded:
        position.random.put(saved["wanted"], iterator.loader)
    try:
        if count > iterator.num_yielded:
            iterator.skip(count - iterator.num_yielded)
    except StopIteration:
        raise UsageError(
            f"the interrupted pass had given {count} batches, and the loader of"
            f" {signature(iterator.loader)} has only {iterator.num_yielded} now: the data has"
            " changed; begin again in another folder"
        ) from None


Item = TypeVar("Item")


class Numbering:
    """Replaces ``enumerate`` in the user's modules until the replay ends.

    If the replay ends while an item is fetched, this item gets the number that follows the last
    number of the interrupted run. ``heads`` has these last numbers by place. In the frame that
    reads the loader, whose place is ``reader``, numbers continue after ``num_before`` batches.
    """

    def __init__(
        self, session: Context, heads: Counters, reader: str, on_the_way: Callable[[], bool]
    ) -> None:
        self._session = session
        self._on_the_way = on_the_way
        self._reader = reader
        self._last: dict[str, list[int]] = {}
        for key, number in heads.items():
            self._last.setdefault(key.rsplit(":", 1)[0], []).append(int(number))
        self.num_before = 0
        self._modules = [module for module in _users_modules() if "enumerate" not in module]
        for module in self._modules:
            module["enumerate"] = self._enumerate

    def close(self) -> None:
        """Restore Python's ``enumerate`` in the user's modules."""
        for module in self._modules:
            module.pop("enumerate", None)
        self._modules = []

    def _enumerate(self, iterable: Iterable[Item], start: int = 0) -> Iterator[tuple[int, Item]]:
        return (
            self._numbered(iter(iterable), start)
            if self._modules
            else builtins.enumerate(iterable, start)
        )

    def _numbered(self, items: Iterator[Item], number: int) -> Iterator[tuple[int, Item]]:
        while True:
            before = self._on_the_way()
            try:
                item = next(items)
            except StopIteration:
                return
            if before and not self._on_the_way():
                number = self._next(number)
            yield number, item
            number += 1

    def _next(self, start: int) -> int:
        frames = user_frames(self._session.frame)
        here = place(frames, len(frames) - 1) if frames else self._reader
        numbers = self._last.get(here, [])
        return (
            start + self.num_before if here == self._reader or len(numbers) != 1 else numbers[0] + 1
        )


def _users_modules() -> list[dict[str, Any]]:
    """Return the variables of all imported modules of the user."""
    modules = [
        module
        for name, module in list(sys.modules.items())
        if is_users(name, getattr(module, "__file__", None))
    ]
    return [vars(module) for module in modules]


Key = tuple[Section, int]


class Target:
    """Compares a saved position with the current one. ``saved`` is a ``LoopPosition.state()``."""

    def __init__(self, saved: State, position: LoopPosition) -> None:
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
        """Return the epoch at which loop ``number``, of ``count`` epochs, begins in this run."""
        loop, epoch = self.section
        if loop == number:
            return count if self.ended else epoch
        if loop < number:
            return 0
        end = self._loop_ends[number]
        empty_since = self.ended or not self.passes[self.section]
        # a loop that has more epochs than before continues at its old end
        return end if loop == number + 1 and end >= 0 and empty_since else count

    def is_source(self, section: Section) -> bool:
        """Whether a section comes after the target, or was not part of the earlier run's loop."""
        loop, epoch = section
        return section > self.section or epoch >= self._loop_ends.get(loop, epoch + 1) >= 0

    def is_at_begin_of(self, section: Section) -> bool:
        """Whether the target comes before the first pass of this section."""
        return section == self.section and (self.ended or not self.passes[section])

    @property
    def is_in_another_loop(self) -> bool:
        """Whether the earlier run had trained before any ``s.epochs``, so in another loop."""
        passes = self.passes.get((0, 0), [])
        trained = any(not one.before_training for one in passes)
        return self.section == (0, 0) and trained and (self.ended or bool(self.open))

    # Passes --------------------------------------------------------------------------------------

    @property
    def key(self) -> Key:
        """The section and the number of the pass that the script begins next."""
        return self._position.section, self._position.passes_begun

    @property
    def next_pass(self) -> RecordedPass | None:
        """The next pass in this section, as the earlier run has recorded it."""
        known = self.passes.get(self._position.section, [])
        return next(iter(known[self._position.passes_begun :]), None)

    @property
    def is_in_this_gap(self) -> bool:
        """Whether the earlier run has begun no further pass in this section."""
        return self._position.section == self.section and self.next_pass is None

    @property
    def next_start(self) -> Standing | None:
        """The random states at the start of this gap in the earlier run; None if unknown."""
        if self.is_in_this_gap:
            return self.gap
        gap: RecordedGap | None = None if self.next_pass is None else self.next_pass.gap
        return gap.get("start") if gap else None

    def is_before_training(self, one: OpenPass) -> bool:
        """Whether a pass came before the first step of the run."""
        passes = self.passes.get(one.section, [])
        return 0 <= one.ordinal < len(passes) and passes[one.ordinal].before_training
