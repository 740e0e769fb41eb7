"""Back to where an interrupted run was: the script runs from its start, and everything that is behind it is left out.

Passes over loaders that are done replay empty, steps, schedulers, logging and saving do nothing. A pass before the first
step of the run (of statistics over the data, say) is run again. The first time the loop does something that it had not
done yet, it has arrived: all state is put back at once, and from there on everything happens again.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torchbus import Session, hookimpl
from torchbus.errors import TorchbusError, UsageError
from torchbus.notices import warn
from torchbus.seams.loader import LoaderIterator
from torchbus.seams.skipping import Answer

from torchbus_checkpoint import counters
from torchbus_checkpoint.frames import user_frames
from torchbus_checkpoint.numbering import Numbering
from torchbus_checkpoint.position import Position, Section, refuse_hidden, signature

REMEDY = "say `for epoch in s.epochs(...):` instead of `range(...)`, so that the run goes on where it was"


class Replay:
    """``saved`` is a ``Position.state()``; ``put_back`` restores everything else; ``rank_alike`` says whether the
    checkpoint has this rank's own random numbers; batches were larger by ``scale`` where there was another number of ranks."""

    def __init__(
        self, session: Session, position: Position, saved: dict[str, Any], put_back: Callable[[], None], rank_alike: bool, scale: float
    ) -> None:
        self._session = session
        self._position = position
        self.put_back = put_back
        position.alike = rank_alike
        position.born(saved)
        self._saved = saved
        self._scale = scale
        self._sections: dict[Section, tuple[list[str], list[bool]]] = {
            tuple(section): (over, before) for section, over, before in saved["sections"]
        }  # fmt: skip
        self._open = {(tuple(one["section"]), one["ordinal"]): one for one in saved["open"]}
        self._loop_ends: dict[int, int] = dict(saved["loop_ends"])
        self._ended = saved["ended"]
        self._quiet = contextlib.ExitStack()
        self._numbering = Numbering(session, saved["heads"], saved["reader"], lambda: self.pending)
        session.on_close.callback(self._numbering.close)
        session.on_close.callback(self._quiet.close)
        self.section: Section = tuple(saved["section"])
        self._left_out = False
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
        nothing_since = self._ended or not self._sections[self.section][0]
        return end if loop == number + 1 and end >= 0 and nothing_since else count  # more epochs than before go on there

    def enter(self, section: Section) -> None:
        """The script has come to a section."""
        beyond = section > self.section or section[1] >= self._loop_ends.get(section[0], section[1] + 1) >= 0
        here = section == self.section and (self._ended or not self._sections[section][0])
        if beyond or here:
            self.arrive()

    # What is done already --------------------------------------------------------------------------------------

    @hookimpl(tryfirst=True)
    def skip_pass(self, loader: DataLoader[Any]) -> bool | None:
        if not self.pending:
            return None
        key = (self._position.section, self._position.passes_begun)
        over, before_training = self._sections.get(key[0], ([], []))
        if key[1] >= len(over):
            self.arrive()
            return None
        if over[key[1]] != signature(loader):
            raise UsageError(
                f"pass {key[1]} of this loop is over a loader of {signature(loader)}; in the checkpoint it was over one of {over[key[1]]}. "
                f"If the loop is the same, its course depends on numbers that a replay does not have: {REMEDY}"
            )
        if key in self._open:
            self._position.put_random(self._open[key]["started"], loader)
            return None
        if before_training[key[1]]:
            return None
        self._position.note(loader, False)
        self._left_out = True
        if self._ended and key[1] == len(over) - 1:
            self.put_back()  # the run had ended: what comes after its last pass sees what it has made
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
        prepares = not self._left_out and any(one.alive is not None for one in self._position.open)
        if self.pending and not prepares:
            raise UsageError(f"the loop calls backward while it is led back to where it was, on batches that no loader made: {REMEDY}")

    # Arrival ---------------------------------------------------------------------------------------------------

    @hookimpl(tryfirst=True)
    def batch_wanted(self, loader: DataLoader[Any], iterator: LoaderIterator) -> None:
        if self.pending and not iterator.taken:
            found = self._position.of(iterator)
            if found is not None and (found.section, found.ordinal) in self._open:
                self.arrive()

    def arrive(self) -> None:
        """Put everything back."""
        frames = user_frames(self._session.frame)
        refuse_hidden(self._saved["counters"], counters.around(frames), "in this run where it goes on")
        self.pending = False
        for one in self._position.open:
            saved = self._open.pop((one.section, one.ordinal), None)
            if saved is not None and one.alive is not None:
                self._go_to(one, one.alive, saved)
        for one in self._open.values():
            warn(f"a pass over a loader that had given {one['taken']} batches is not open where this run arrives: it begins anew")
        self.put_back()
        self._position.variables.put_back(frames, self._saved["variables"])
        self.drop()

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

    def _go_to(self, one: Any, iterator: LoaderIterator, saved: dict[str, Any]) -> None:
        one.started, one.wanted = saved["started"], saved["wanted"]
        if saved["wanted"] is not None:
            self._position.put_random(saved["wanted"], iterator.loader)
        count = int(saved["taken"] * self._scale)
        try:
            iterator.skip(count)
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
