"""The loop's position: section of the script, pass over a loader, batch.

The script has sections. (0, 0) is everything before the first ``s.epochs``, (1, e) is epoch e of
that loop, (2, 0) is the code after that loop, (3, e) is epoch e of the second such loop, and so on.
A loop over ``range`` has only the section (0, 0). Passes are counted within their section."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Mapping
from types import FrameType
from typing import Any

from torch.utils.data import DataLoader
from torchbus.plugin import Context, LoaderIterator, hookimpl, warn

from torchbus_checkpoint._compat import check_bytecode, has_iterator, open_iterator
from torchbus_checkpoint.loop import frames, loaders, variables
from torchbus_checkpoint.loop import frames as checkpoint_frames
from torchbus_checkpoint.loop.course import refuse_hidden
from torchbus_checkpoint.loop.frames import Counters, user_frames
from torchbus_checkpoint.loop.generators import LoaderStates
from torchbus_checkpoint.loop.history import NESTED, Gaps, History, RecordedPass, Section, Standing
from torchbus_checkpoint.loop.loaders import KnownLoaders, OpenPass, Workers, signature
from torchbus_checkpoint.loop.variables import ExtendedLists, Variables, flush_files, put_generators
from torchbus_checkpoint.state.plain import State, decode, encode


class LoopPosition:
    """Follows the passes over loaders.

    ``trains`` is True once the loop has made its first step. ``was_left`` is True if the loop has
    left a pass by ``break`` after it was cut short. ``repeated`` is closed when the loop no longer
    repeats steps of a killed run. ``expected`` has the counters that the loop must have when it
    requests batch ``expected_after``.
    """

    hears_trials = False

    def __init__(self, session: Context) -> None:
        check_bytecode()
        self._session = session
        self.history = History()
        self.gaps = Gaps(session)
        self.open: list[OpenPass] = []
        self.repeated = contextlib.ExitStack()
        session.on_close.callback(self.repeated.close)
        self.variables, self._lists = Variables(), ExtendedLists()
        self.trains = self.was_left = False
        self.expected: Counters = {}
        self.expected_after = 0
        states = LoaderStates()
        self.random = RandomNumbers(session, states)
        self.workers = Workers()
        self.loaders = KnownLoaders(
            session, states, lambda loader: any(one.loader() is loader for one in self._in_use())
        )
        self._opening: OpenPass | None = None

    @property
    def section(self) -> Section:
        return self.history.section

    def begin(self) -> None:
        """Called at the start of the block."""
        self.gaps.begin(user_frames(self._session.frame))

    def enter(self, section: Section) -> None:
        """Called when a new section begins. Forgets the passes of finished epochs."""
        frames = user_frames(self._session.frame)
        self.variables.look(frames)
        reads_loaders = bool(self.history.here) or section[1] == 0
        self.history.enter(section)
        if reads_loaders:  # skip this cost for an "epoch" that is a single step without a loader
            self._lists.measure(frames)
            self.gaps.begin(frames)
        else:
            self.gaps.forget()

    def training_begins(self) -> None:
        """Called at the loop's first step. Passes still open count as part of training."""
        self.trains = True
        for one in self.open:
            if (
                one.alive is not None
                and one.num_yielded != one.consumed_before
                and one.ordinal != NESTED
                and one.section in self.history.passes
            ):
                self.history.passes[one.section][one.ordinal].before_training = False

    @property
    def passes_begun(self) -> int:
        """Number of passes that have begun in this section."""
        return len(self.history.here)

    @property
    def is_known(self) -> bool:
        """Whether the position is known: the loop has read a loader, or uses ``s.epochs``."""
        return self.section != (0, 0) or self.passes_begun > 0

    @property
    def is_after_epochs(self) -> bool:
        """Whether a loop over ``s.epochs`` has ended, and no other has begun."""
        return self.section[0] > 0 and self.section[0] % 2 == 0

    # Events --------------------------------------------------------------------------------------

    @hookimpl(tryfirst=True)
    def loader_start(self, loader: DataLoader[object]) -> None:
        self.loaders.add(loader)
        if loader.persistent_workers and not has_iterator(loader):
            self._begin_workers(loader)
        frames = user_frames(self._session.frame)
        self.variables.look(frames)
        if self.section == (0, 0):
            self._lists.measure(frames)
        ordinal = self.history.begin(
            RecordedPass(signature(loader), not self.trains, self.gaps.ended(frames)), frames
        )
        for one in self.open if ordinal != NESTED else ():
            one.consumed_before = one.num_yielded
        self._opening = OpenPass(
            self.section,
            ordinal,
            weakref.ref(loader),
            self.random.state(loader),
            checkpoint_frames.around(frames),
            loaders.look(loader),
            variables.numbers(frames) if ordinal != NESTED else {},
            dict(variables.generators_in(frames)) if ordinal != NESTED else {},
        )

    @hookimpl(trylast=True)
    def loader_opened(self, iterator: LoaderIterator) -> None:
        if self._opening is not None:
            self._opening.iterator = weakref.ref(iterator, self._let_go)
            self._opening.origin = iterator.origin
            self.open = [*self._in_use(), self._opening]
            self._opening = None
        if not self.open or self.open[-1].ordinal != NESTED:
            self.gaps.begin(user_frames(self._session.frame), is_open=False)

    def _in_use(self) -> list[OpenPass]:
        """Return the passes from which the loop can still get batches."""
        return [
            one for one in self.open if one.alive is not None or loaders.waiting(self._session, one)
        ]

    def _let_go(self, iterator: weakref.ref[LoaderIterator]) -> None:
        """Called when an iterator is deleted: before its end if the loop left it by ``break``."""
        left = [
            one
            for one in self.open
            if one.iterator is iterator and one.origin is not None and not one.origin.ended
        ]
        if left and self._session.is_inside:
            self.was_left = self.was_left or bool(self._session.bus.hook.cut_short())
            self._over(left[0])

    def _over(self, one: OpenPass) -> None:
        if one.ordinal == NESTED or one.origin is None:
            return
        here = user_frames(self._session.frame)
        if one.section in self.history.passes and not one.origin.ahead:
            found = self.history.passes[one.section][one.ordinal]
            found.counted = variables.changed(one.numbers, variables.numbers(here))
        self.gaps.begin(here, fetched_ahead=one.origin.ahead)

    @hookimpl
    def before_backward(self) -> None:
        origins = [batch.origin for batch in self._session.batches.current]
        for one in self.open:
            if one.origin in origins and one.section in self.history.passes:
                self.history.passes[one.section][one.ordinal].trained = True

    @hookimpl
    def after_backward(self) -> None:
        """Move the start of the gap: batches that a wrapper fetched ahead were still in use."""
        if self.gaps.fetched_ahead:
            self.gaps.begin(user_frames(self._session.frame), fetched_ahead=True)

    after_optimizer_step = after_backward

    @hookimpl
    def batch_wanted(self, loader: DataLoader[object], iterator: LoaderIterator) -> None:
        if self.expected and iterator.num_yielded == self.expected_after:
            expected, self.expected = self.expected, {}
            refuse_hidden(
                expected,
                frames.at_head(user_frames(self._session.frame)),
                "after the first batch of this run",
            )
        if not iterator.num_yielded:
            found = self.of(iterator)
            if found is not None and found.wanted is None:
                found.wanted = self.random.state(loader)
                self.history.asked(user_frames(self._session.frame))

    @hookimpl(trylast=True)
    def loader_end(self, loader: DataLoader[object]) -> None:
        over = [one for one in self.open if one.loader() is loader and one.exhausted]
        self.open = [
            one for one in self.open if one not in over or loaders.waiting(self._session, one)
        ]
        for one in over[-1:]:
            self._over(one)

    def of(self, iterator: LoaderIterator) -> OpenPass | None:
        return next((one for one in self.open if one.alive is iterator), None)

    def can_be_found_again(self, iterator: LoaderIterator) -> bool:
        """Whether a replay can reach the loop's current position.

        It can't if the pass began in an earlier epoch of ``s.epochs``, or inside another pass. A
        later position may be reachable. Raises UsageError if no replay can ever reach the loop's
        position.
        """
        found = self.of(iterator)
        if found is None or found.section != self.section or found.ordinal == NESTED:
            return False
        now = frames.around(user_frames(self._session.frame))
        refuse_hidden({key: found.counters.get(key) for key in now}, now, "now")
        return True

    # State ---------------------------------------------------------------------------------------

    def saves(self) -> None:
        """Called before a checkpoint is written.

        From here on, steps no longer repeat those of a killed run. Flushes the script's open files,
        so that a kill can't lose their buffers.
        """
        self.repeated.close()
        frames = user_frames(self._session.frame)
        flush_files(frames)
        if self._session.is_main:
            self._lists.warn_of_lost(frames)

    def state(self) -> State:
        """Return the position, for this rank's file."""
        frames = user_frames(self._session.frame)
        return {
            "born": self.workers.state(),
            "variables": self.variables.changed(frames, self._session.batches.fetched),
            "counters": checkpoint_frames.around(frames),
            "heads": checkpoint_frames.at_head(frames),
            "reader": checkpoint_frames.place(frames, len(frames) - 1) if frames else "",
            "section": self.section,
            **self.history.state(),
            "gap": self.gaps.start,
            "saves": self.gaps.saves,
            "open": [self._state_of(one) for one in self._in_use()],
            "loaders": self.loaders.state(),
            "random": self.random.streams(),
        }

    def _state_of(self, one: OpenPass) -> State:
        return {
            "section": one.section,
            "ordinal": one.ordinal,
            "started": one.started,
            "wanted": one.wanted,
            "own": one.generators,
            "taken": loaders.used(self._session, one),
            "last": one.consumed_before != one.num_yielded,
            "samples": one.samples,
        }

    def _begin_workers(self, loader: DataLoader[object]) -> None:
        """Start persistent workers with the random state of their first start in an earlier run."""
        over, now = signature(loader), self.random.state(loader)
        then = self.workers.begin(over, now)
        if then is None:
            return
        warn(
            f"persistent_workers: the workers of the loader of {over} start again, and so do the"
            " random numbers that they draw. For an exact resume, create the loader in each epoch"
        )
        self.random.put(then, loader)
        open_iterator(loader)
        self.random.put(now, loader)


class RandomNumbers:
    """Saves and restores random streams. ``alike`` is True if this rank saved the states."""

    def __init__(self, session: Context, states: LoaderStates) -> None:
        self._session = session
        self._states = states
        self.alike = True

    def streams(self) -> State:
        """Return the state of the session's streams."""
        state: State = encode(self._session.random.state(), "the random state")
        return state

    def state(self, loader: DataLoader[object]) -> State:
        """Return the streams, and the generators of a loader."""
        return {"random": self.streams(), "generators": self._states.read(loader)}

    def put(self, state: Mapping[str, Any], loader: DataLoader[object] | None) -> None:
        """Restore a ``state``. If another rank saved it, restore only the common streams."""
        streams = decode(state["random"])
        if self.alike:
            self._session.random.load(streams)
        else:
            self._session.random.load_common(streams, self._session.rank, self._session.world_size)
        if loader is not None:
            self._states.write(loader, state["generators"])

    def put_standing(self, standing: Standing, frames: list[FrameType]) -> None:
        """Restore the random states at the start of a gap."""
        self.put(standing, None)
        put_generators(frames, standing["own"])
