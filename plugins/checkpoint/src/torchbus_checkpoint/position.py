"""Where the loop is: in which part of the script, in which pass over which loader, at which batch.

The script is cut into sections: (0, 0) is all before the first ``s.epochs``, (1, e) epoch e of the first such loop, (2, 0)
what comes after it, (3, e) epoch e of the second loop, and so on. A loop that says ``range`` has the one section (0, 0).
Passes are counted within their section.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import DataLoader
from torchbus import Session, hookimpl
from torchbus.errors import UsageError
from torchbus.notices import warn
from torchbus.seams.loader import LoaderIterator
from torchbus.taken import Origin

from torchbus_checkpoint import counters, generators, wrappers
from torchbus_checkpoint.counters import Counters
from torchbus_checkpoint.frames import user_frames
from torchbus_checkpoint.plain import decode, encode
from torchbus_checkpoint.variables import Variables

Section = tuple[int, int]
State = dict[str, Any]


@dataclass
class OpenPass:
    """A pass that has begun. ``started`` and ``wanted`` are the random numbers as they stood when its iterator was made, and
    when it was first asked for a batch."""

    section: Section
    ordinal: int
    loader: weakref.ref[DataLoader[Any]]
    started: State
    counters: Counters
    wanted: State | None = None
    iterator: weakref.ref[LoaderIterator] | None = None
    origin: Origin | None = None

    @property
    def alive(self) -> LoaderIterator | None:
        return None if self.iterator is None else self.iterator()


@dataclass
class Passes:
    """The passes of one section: over what, and whether they came before the first step of the run."""

    over: list[str] = field(default_factory=list)
    before_training: list[bool] = field(default_factory=list)


class Position:
    """Listens to loaders. ``num_steps`` is kept by the plugin; here it only says whether training has begun."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.section: Section = (0, 0)
        self.sections: dict[Section, Passes] = {(0, 0): Passes()}
        self.open: list[OpenPass] = []
        self.variables = Variables()
        self.trains = False
        self.expected: Counters = {}
        self.expected_after = 0
        self.alike = True
        self._born: dict[str, State] = {}
        self._opening: OpenPass | None = None
        self._loaders: list[weakref.ref[DataLoader[Any]]] = []
        self._unplaced: list[tuple[str, State]] = []

    def enter(self, section: Section) -> None:
        """A new section begins. What is kept of old epochs is nothing."""
        self.variables.look(user_frames(self._session.frame))
        self.sections = {old: passes for old, passes in self.sections.items() if old[0] % 2 == 0}
        self.section = section
        self.sections.setdefault(section, Passes())

    def training_begins(self) -> None:
        """The first step is made: the passes that are open are not of before it."""
        self.trains = True
        for one in self.open:
            if one.alive is not None and one.section in self.sections:
                self.sections[one.section].before_training[one.ordinal] = False

    def note(self, loader: DataLoader[Any], before_training: bool) -> int:
        """Count a pass that begins, or that is left out; returns its number in the section."""
        passes = self.sections[self.section]
        passes.over.append(signature(loader))
        passes.before_training.append(before_training)
        return len(passes.over) - 1

    @property
    def passes_begun(self) -> int:
        """In this section."""
        return len(self.sections[self.section].over)

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
        around = counters.around(frames)
        self._opening = OpenPass(self.section, self.note(loader, not self.trains), weakref.ref(loader), self.random_state(loader), around)

    @hookimpl
    def loader_opened(self, iterator: LoaderIterator) -> None:
        if self._opening is not None:
            self._opening.iterator, self._opening.origin = weakref.ref(iterator), iterator.origin
            self.open = [one for one in self.open if one.alive is not None or wrappers.waiting(self._session, one)] + [self._opening]
            self._opening = None

    @hookimpl
    def batch_wanted(self, loader: DataLoader[Any], iterator: LoaderIterator) -> None:
        if self.expected and iterator.taken == self.expected_after:
            expected, self.expected = self.expected, {}
            refuse_hidden(expected, counters.at_head(user_frames(self._session.frame)), "after the first batch of this run")
        if not iterator.taken:
            found = self.of(iterator)
            if found is not None and found.wanted is None:
                found.wanted = self.random_state(loader)

    @hookimpl
    def loader_end(self, loader: DataLoader[Any]) -> None:
        self.open = [one for one in self.open if one.loader() is not loader or not _exhausted(one) or wrappers.waiting(self._session, one)]

    def of(self, iterator: LoaderIterator) -> OpenPass | None:
        return next((one for one in self.open if one.alive is iterator), None)

    def can_be_found_again(self, iterator: LoaderIterator) -> bool:
        """Whether a replay gets to where the loop is now. Not in an epoch of ``s.epochs`` in which the pass did not begin: the next
        epoch will be right. Raises UsageError where it never will be."""
        found = self.of(iterator)
        if found is None or found.section != self.section:
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
            "born": self._born,
            "variables": self.variables.changed(frames),
            "counters": counters.around(frames),
            "heads": counters.at_head(frames),
            "reader": counters.place(frames, len(frames) - 1) if frames else "",
            "section": self.section,
            "sections": [[section, passes.over, passes.before_training] for section, passes in self.sections.items()],
            "open": [
                {"section": one.section, "ordinal": one.ordinal, "started": one.started, "wanted": one.wanted,
                 "taken": wrappers.used(self._session, one)}
                for one in self.open if one.alive is not None or wrappers.waiting(self._session, one)
            ],
            "loaders": [[signature(loader), generators.read(loader)] for loader in (known() for known in self._loaders) if loader is not None],
            "random": encode(self._session.random.state(), "the random state"),
        }  # fmt: skip

    def born(self, saved: State) -> None:
        """The loaders whose persistent workers an earlier run has started."""
        self._born = dict(saved["born"])

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
        """Workers that persist draw their seed once, in the first pass that the run ever made: not in this one."""
        over = signature(loader)
        if over not in self._born:
            self._born[over] = self.random_state(loader)
            return
        warn(f"persistent_workers: those of the loader of {over} are started anew, and with them the random numbers that they draw")
        now = self.random_state(loader)
        self.put_random(self._born[over], loader)
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

    def _take(self, loader: DataLoader[Any]) -> None:
        for index, (over, states) in enumerate(self._unplaced):
            if over == signature(loader):
                generators.write(loader, states)
                del self._unplaced[index]
                return


def _exhausted(one: OpenPass) -> bool:
    return one.alive is None or one.alive.ended


def refuse_hidden(before: Counters, now: Counters, when: str) -> None:
    """Raise UsageError if a loop that both know has gone on."""
    for key in before.keys() & now.keys():
        if before[key] != now[key]:
            place, name = key.rsplit(":", 1)
            raise UsageError(
                f"a checkpoint can't hold the position of `for {name} in ...` (in {place.split(' ', 1)[1]}): it was {before[key]!r}, and is "
                f"{now[key]!r} {when}. Say `for {name} in s.epochs(...):` instead of `range(...)`"
            )


def signature(loader: DataLoader[Any]) -> str:
    """What a loader is over, in words that are the same in the next run."""
    try:
        size = f"{len(loader.dataset)} samples"  # type: ignore[arg-type]
    except TypeError:
        size = "a stream"
    return f"{type(loader.dataset).__name__}, {size}, batch_size {loader.batch_size}"
