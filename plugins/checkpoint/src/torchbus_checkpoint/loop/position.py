"""Where the loop is: in which part of the script, in which pass over which loader, at which batch.

The script is cut into sections: (0, 0) is all before the first ``s.epochs``, (1, e) epoch e of the first such loop, (2, 0)
what comes after it, (3, e) epoch e of the second loop, and so on. A loop that says ``range`` has the one section (0, 0).
Passes are counted within their section.
"""

from __future__ import annotations

import weakref
from types import FrameType
from typing import Any

from torch.utils.data import DataLoader
from torchbus.plugin import Context, LoaderIterator, hookimpl, warn

from torchbus_checkpoint.loop import counters, generators, samples, wrappers
from torchbus_checkpoint.loop.counters import Counters
from torchbus_checkpoint.loop.frames import user_frames
from torchbus_checkpoint.loop.passes import OpenPass
from torchbus_checkpoint.loop.variables import Variables, put_generators
from torchbus_checkpoint.loop.workers import Workers
from torchbus_checkpoint.replay.course import refuse_hidden, signature
from torchbus_checkpoint.replay.gaps import Gaps, Standing
from torchbus_checkpoint.replay.history import NESTED, History, Pass, Section
from torchbus_checkpoint.state.plain import decode, encode

State = dict[str, Any]


class Position:
    """Listens to loaders. ``num_steps`` is kept by the plugin; here it only says whether training has begun."""

    def __init__(self, session: Context) -> None:
        self._session = session
        self.history = History()
        self.gaps = Gaps(session)
        self.open: list[OpenPass] = []
        self.variables = Variables()
        self.trains = False
        self.expected: Counters = {}
        self.expected_after = 0
        self.alike = True
        self.workers = Workers()
        self._opening: OpenPass | None = None
        self._loaders: list[weakref.ref[DataLoader[Any]]] = []
        self._unplaced: list[tuple[str, State]] = []

    @property
    def section(self) -> Section:
        return self.history.section

    def begin(self) -> None:
        """The block begins."""
        self.gaps.begin(user_frames(self._session.frame))

    def enter(self, section: Section) -> None:
        """A new section begins. What is kept of old epochs is nothing."""
        frames = user_frames(self._session.frame)
        self.variables.look(frames)
        reads_loaders = bool(self.history.here) or section[1] == 0
        self.history.enter(section)
        if reads_loaders:  # an "epoch" that is a single step need not read the generators
            self.gaps.begin(frames)
        else:
            self.gaps.forget()

    def training_begins(self) -> None:
        """The first step is made: the passes that the loop reads are not of before it."""
        self.trains = True
        for one in self.open:
            if one.alive is not None and one.taken != one.taken_before and one.ordinal != NESTED and one.section in self.history.passes:
                self.history.passes[one.section][one.ordinal].before_training = False

    @property
    def passes_begun(self) -> int:
        """In this section."""
        return len(self.history.here)

    @property
    def is_known(self) -> bool:
        """Whether there is a loader or an ``s.epochs`` by which the loop can be followed."""
        return self.section != (0, 0) or self.passes_begun > 0

    # Events ----------------------------------------------------------------------------------------------------

    @hookimpl(tryfirst=True)
    def loader_start(self, loader: DataLoader[Any]) -> None:
        self._place(loader)
        if loader.persistent_workers and getattr(loader, "_iterator", None) is None:
            self._begin_workers(loader)
        frames = user_frames(self._session.frame)
        self.variables.look(frames)
        ordinal = self.history.begin(Pass(signature(loader), not self.trains, self.gaps.ended(frames)), frames)
        for one in self.open if ordinal != NESTED else ():
            one.taken_before = one.taken
        self._opening = OpenPass(
            self.section, ordinal, weakref.ref(loader), self.random_state(loader), counters.around(frames), samples.look(loader)
        )  # fmt: skip

    @hookimpl(trylast=True)
    def loader_opened(self, iterator: LoaderIterator) -> None:
        if self._opening is not None:
            self._opening.iterator, self._opening.origin = weakref.ref(iterator, self._let_go), iterator.origin
            self.open = [one for one in self.open if one.alive is not None or wrappers.waiting(self._session, one)] + [self._opening]
            self._opening = None
        if not self.open or self.open[-1].ordinal != NESTED:
            self.gaps.begin(user_frames(self._session.frame), is_open=False)

    def _let_go(self, iterator: weakref.ref[LoaderIterator]) -> None:
        """The loop has left a pass by ``break``."""
        left = [one for one in self.open if one.iterator is iterator and one.origin is not None and not one.origin.ended]
        if left and self._session.is_inside:
            self._over(left[0])

    def _over(self, one: OpenPass) -> None:
        if one.ordinal != NESTED and one.origin is not None:
            self.gaps.begin(user_frames(self._session.frame), fetched_ahead=one.origin.ahead)

    @hookimpl
    def after_backward(self) -> None:
        """The loop may still use the last batches of a pass that a wrapper has ended."""
        if self.gaps.fetched_ahead:
            self.gaps.begin(user_frames(self._session.frame), fetched_ahead=True)

    after_optimizer_step = after_backward

    @hookimpl
    def batch_wanted(self, loader: DataLoader[Any], iterator: LoaderIterator) -> None:
        if self.expected and iterator.taken == self.expected_after:
            expected, self.expected = self.expected, {}
            refuse_hidden(expected, counters.at_head(user_frames(self._session.frame)), "after the first batch of this run")
        if not iterator.taken:
            found = self.of(iterator)
            if found is not None and found.wanted is None:
                found.wanted = self.random_state(loader)
                self.history.asked(user_frames(self._session.frame))

    @hookimpl(trylast=True)
    def loader_end(self, loader: DataLoader[Any]) -> None:
        over = [one for one in self.open if one.loader() is loader and one.exhausted]
        self.open = [one for one in self.open if one not in over or wrappers.waiting(self._session, one)]
        for one in over[-1:]:
            self._over(one)

    def of(self, iterator: LoaderIterator) -> OpenPass | None:
        return next((one for one in self.open if one.alive is iterator), None)

    def can_be_found_again(self, iterator: LoaderIterator) -> bool:
        """Whether a replay gets to where the loop is now. Not in an epoch of ``s.epochs`` in which the pass did not begin: the next
        epoch will be right. Raises UsageError where it never will be."""
        found = self.of(iterator)
        if found is None or found.section != self.section or found.ordinal == NESTED:
            return False
        now = counters.around(user_frames(self._session.frame))
        refuse_hidden({key: found.counters.get(key) for key in now}, now, "now")
        return True

    # State -----------------------------------------------------------------------------------------------------

    def random_state(self, loader: DataLoader[Any]) -> State:
        return {"random": encode(self._session.random.state(), "the random state"), "generators": generators.read(loader)}

    def state(self) -> State:
        """All of it, for this rank's file."""
        frames = user_frames(self._session.frame)
        return {
            "born": self.workers.state(),
            "variables": self.variables.changed(frames, self._session.batches.fetched),
            "counters": counters.around(frames),
            "heads": counters.at_head(frames),
            "reader": counters.place(frames, len(frames) - 1) if frames else "",
            "section": self.section,
            **self.history.state(),
            "gap": self.gaps.start,
            "saves": self.gaps.saves,
            "open": [
                {"section": one.section, "ordinal": one.ordinal, "started": one.started, "wanted": one.wanted,
                 "taken": wrappers.used(self._session, one), "last": one.taken_before != one.taken, "samples": one.samples}
                for one in self.open if one.alive is not None or wrappers.waiting(self._session, one)
            ],
            "loaders": [[signature(loader), generators.read(loader)] for loader in (known() for known in self._loaders) if loader is not None],
            "random": encode(self._session.random.state(), "the random state"),
        }  # fmt: skip

    def put_generators(self, saved: State) -> None:
        """Those of loaders that were not iterated yet are put back when they are."""
        self._unplaced = [(over, states) for over, states in saved["loaders"] if states]
        for loader in (known() for known in self._loaders):
            if loader is not None:
                self._take(loader)

    def _place(self, loader: DataLoader[Any]) -> None:
        if not any(known() is loader for known in self._loaders):
            self._loaders = [known for known in self._loaders if known() is not None] + [weakref.ref(loader)]
            self._take(loader)

    def _begin_workers(self, loader: DataLoader[Any]) -> None:
        """Workers that persist are begun as they were in the first pass that the run ever made."""
        over, now = signature(loader), self.random_state(loader)
        then = self.workers.begin(over, now)
        if then is None:
            return
        warn(f"persistent_workers: those of the loader of {over} are started anew, and with them the random numbers that they draw")
        self.put_random(then, loader)
        loader._iterator = loader._get_iterator()
        self.put_random(now, loader)

    def put_random(self, state: State, loader: DataLoader[Any] | None) -> None:
        """Back to a ``random_state``; ``alike`` says that it is one of this rank's own."""
        streams = decode(state["random"])
        if self.alike:
            self._session.random.load(streams)
        else:
            self._session.random.load_common(streams, self._session.rank, self._session.world_size)
        if loader is not None:
            generators.write(loader, state["generators"])

    def put_standing(self, standing: Standing, frames: list[FrameType]) -> None:
        """The random numbers as they stood when a gap began."""
        self.put_random(standing, None)
        put_generators(frames, standing["own"])

    def _take(self, loader: DataLoader[Any]) -> None:
        for index, (over, states) in enumerate(self._unplaced):
            if over == signature(loader):
                generators.write(loader, states)
                del self._unplaced[index]
                return
