"""Back to where an interrupted run was: the script runs from its start, and everything that is behind it is left out.

Passes over loaders that are done replay empty, steps, schedulers, logging and saving do nothing. A pass before the first
step of the run (of statistics over the data, say) is run again, and so is what lies between passes, with the random numbers
that it had. The first time the loop does something that it had not done yet, it has arrived: all state is put back at once,
and from there on everything happens again. What it was led through is part of its own history, for the run that goes on from this one.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torchbus.plugin import Answer, Context, LoaderIterator, TorchbusError, UsageError, hookimpl, warn

from torchbus_checkpoint.loop import counters, samples
from torchbus_checkpoint.loop.frames import user_frames
from torchbus_checkpoint.loop.passes import OpenPass
from torchbus_checkpoint.loop.position import Position
from torchbus_checkpoint.replay import course, history
from torchbus_checkpoint.replay.course import REMEDY, refuse_hidden, signature
from torchbus_checkpoint.replay.gaps import UNKNOWN
from torchbus_checkpoint.replay.history import Pass, Section
from torchbus_checkpoint.replay.numbering import Numbering


class Replay:
    """``saved`` is a ``Position.state()``; ``put_back`` restores everything else; ``rank_alike`` says whether the
    checkpoint has this rank's own random numbers; batches were larger by ``scale`` where there was another number of ranks."""

    def __init__(
        self, session: Context, position: Position, saved: dict[str, Any], put_back: Callable[[], None], rank_alike: bool, scale: float
    ) -> None:
        self._session = session
        self._position = position
        self.put_back = put_back
        position.alike = rank_alike
        position.workers.load(saved["born"])
        self._saved = saved
        self._scale = scale
        self._alike = rank_alike
        self._passes = history.read(saved)
        self._open = {(tuple(one["section"]), one["ordinal"]): one for one in saved["open"]}
        self._loop_ends: dict[int, int] = dict(saved["loop_ends"])
        self._ended = saved["ended"]
        self._quiet = contextlib.ExitStack()
        self._numbering = Numbering(session, saved["heads"], saved["reader"], lambda: self.pending)
        session.on_close.callback(self._numbering.close)
        session.on_close.callback(self._quiet.close)
        self.section: Section = tuple(saved["section"])
        self._compares = rank_alike
        self._in_its_gap = False
        self.pending = True

    # Epochs of s.epochs -----------------------------------------------------------------------------------------

    def first_epoch(self, number: int, count: int) -> int:
        """Where the loop of this number begins, of ``count`` epochs."""
        loop, epoch = self.section
        if loop == number:
            return count if self._ended else epoch
        if loop < number:
            return 0
        end = self._loop_ends[number]
        nothing_since = self._ended or not self._passes[self.section]
        return end if loop == number + 1 and end >= 0 and nothing_since else count  # more epochs than before go on there

    def enter(self, section: Section) -> None:
        """The script has come to a section."""
        beyond = section > self.section or section[1] >= self._loop_ends.get(section[0], section[1] + 1) >= 0
        if beyond:
            self.arrive(draws_on=True)
        elif section == self.section and (self._ended or not self._passes[section]):
            self.arrive()
        else:
            self.lead()

    def lead(self) -> None:
        """A gap begins: with the random numbers with which it began in the earlier run."""
        frames, known = user_frames(self._session.frame), self._known
        at_end = self._position.section == self.section and self._position.passes_begun == len(known)
        gap = {"start": self._saved.get("gap")} if at_end else self._next.gap if self._next is not None else None
        if gap and gap["start"]:
            self._position.put_standing(gap["start"], frames)
            self._compares = self._alike
            self._in_its_gap = at_end and self._alike
        self._position.gaps.begin(frames)

    @property
    def _known(self) -> list[Pass]:
        """The passes of this section, in the earlier run."""
        return self._passes.get(self._position.section, [])

    @property
    def _next(self) -> Pass | None:
        return next(iter(self._known[self._position.passes_begun :]), None)

    # What is done already --------------------------------------------------------------------------------------

    @hookimpl(tryfirst=True)
    def skip_pass(self, loader: DataLoader[Any]) -> bool | None:
        position, frames = self._position, user_frames(self._session.frame)
        if not self.pending or position.history.is_nested(frames):
            return None
        position.variables.look(frames)
        key, saved = (position.section, position.passes_begun), self._next
        if saved is None:
            self.arrive(draws_on=True)
            return None
        course.refuse_another_loader(saved, loader, position.passes_begun)
        self._compares &= course.draws_alike(saved, position.gaps.ended(frames) if self._compares else UNKNOWN, *key)
        if key in self._open:
            if "samples" in self._open[key]:
                samples.compare(self._open[key]["samples"], loader, saved.over)
            position.put_random(self._open[key]["started"], loader)
            return None
        if saved.before_training:
            return None
        position.history.begin(saved, frames)
        if self._ended and self._next is None:
            self.put_back()  # the run had ended: what comes after its last pass sees what it has made
        self.lead()
        self._silence()
        return True

    @hookimpl(tryfirst=True)
    def step_called(self, optimizer: Optimizer) -> Answer | None:
        return Answer() if self.pending else None

    @hookimpl(tryfirst=True)
    def skip_scheduler(self) -> bool | None:
        return self.pending or None

    @hookimpl(tryfirst=True)
    def skip_logging(self) -> bool | None:
        return self.pending or None

    @hookimpl(tryfirst=True)
    def save_file(self) -> bool | None:
        return self.pending or None

    @hookimpl(tryfirst=True)
    def before_backward(self) -> None:
        if self.pending and not any(one.alive is not None and self._is_before_training(one) for one in self._position.open):
            raise UsageError(f"the loop calls backward while it is led back to where it was, on batches that no loader made: {REMEDY}")

    def _is_before_training(self, one: OpenPass) -> bool:
        passes = self._passes.get(one.section, [])
        return 0 <= one.ordinal < len(passes) and passes[one.ordinal].before_training

    def save_called(self) -> None:
        """By the loop. If it is the very call that has written the checkpoint, the loop is where it was."""
        self._position.gaps.saves += 1
        known = self._position.section == self.section and self._next is None and self._saved.get("gap") is not None
        if known and not self._ended and self._saved["saves"] == self._position.gaps.saves:
            self.arrive()

    # Arrival ---------------------------------------------------------------------------------------------------

    @hookimpl(tryfirst=True)
    def batch_wanted(self, loader: DataLoader[Any], iterator: LoaderIterator) -> None:
        found = self._position.of(iterator) if self.pending else None
        saved = None if found is None else self._open.get((found.section, found.ordinal))
        if saved is not None and (saved.get("last", True) or iterator.taken >= saved["taken"]):
            self._position.history.asked(user_frames(self._session.frame))
            self.arrive()

    def arrive(self, draws_on: bool = False) -> None:
        """Put everything back. ``draws_on``: where the earlier run was in this gap as well, which this one has gone through from its
        begin, the random numbers stand where they should."""
        frames = user_frames(self._session.frame)
        refuse_hidden(self._saved["counters"], counters.around(frames), "in this run where it goes on")
        stand = self._position.gaps.standing(frames) if draws_on and self._in_its_gap else None
        self.pending = False
        self._position.history.adopt(self._passes)
        for one in self._position.open:
            saved = self._open.pop((one.section, one.ordinal), None)
            if saved is not None and one.alive is not None:
                self._go_to(one, one.alive, saved)
        for one in self._open.values():
            warn(f"a pass over a loader that had given {one['taken']} batches is not open where this run arrives: it begins anew")
        self.put_back()
        self._position.variables.put_back(frames, self._saved["variables"])
        self.drop()
        if stand is None:
            self._position.gaps.go_on(self._saved.get("gap"), self._saved.get("saves", 0))
        else:
            self._position.put_standing(stand, frames)

    def end(self) -> None:
        """The script is over, and has not arrived: right for a run that had ended."""
        if not self._ended:
            raise UsageError(
                "the script ended before it came to where the checkpoint was written: its loop is shorter than it was. "
                "Make it as long, or begin anew with resume='never' and another folder"
            )
        self.drop()

    def drop(self) -> None:
        """Put back the random numbers, and leave the loop to itself."""
        self.pending = False
        self._quiet.close()
        self._numbering.close()
        self._position.put_generators(self._saved)
        self._position.put_random(self._saved, None)
        self._session.bus.unregister(self)
        self._session.seams.refresh()

    def _go_to(self, one: OpenPass, iterator: LoaderIterator, saved: dict[str, Any]) -> None:
        one.started, one.wanted = saved["started"], saved["wanted"]
        if saved["wanted"] is not None and not iterator.taken:
            self._position.put_random(saved["wanted"], iterator.loader)
        count = int(saved["taken"] * self._scale)
        try:
            iterator.skip(max(0, count - iterator.taken))
        except StopIteration:
            raise UsageError(
                f"the interrupted pass had given {count} batches, and the loader of {signature(iterator.loader)} has no more than "
                f"{iterator.taken} now: the data has changed; begin anew with resume='never'"
            ) from None
        self._numbering.taken = count
        self._position.expected_after = count + 1
        self._position.expected = {key: last + 1 for key, last in self._saved["heads"].items() if count and last in (count - 1, count)}

    def _silence(self) -> None:
        """What the loop prints of epochs that it does not run is wrong."""
        self._quiet.close()
        self._quiet.enter_context(contextlib.redirect_stdout(io.StringIO()))

    def explain_failure(self, error: BaseException) -> UsageError | None:
        """What an exception of the loop means that came up on the way back."""
        if not isinstance(error, Exception) or isinstance(error, TorchbusError):
            return None
        return UsageError(
            f"the loop can't be led through its finished epochs without their data ({type(error).__name__}: {error}): {REMEDY}"
        )
