"""The replay: drives the loop to the position of an interrupted run.

The script runs from its start. Finished passes over loaders yield no batches. Steps, schedulers,
logging and saving do nothing. Two things run again, with the random numbers of the earlier run:
passes before the first step (for statistics of the data, say), and the code between passes.

The script also writes, renames and removes no files. After a skipped pass, the loop's numbers have
the values that they had at its end. The replay ends when the loop does something that the earlier
run had not done. Then all state is restored at once, and all calls have their effect again. The
replayed passes remain in the history, for a later run that resumes from this one.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Sequence

from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torchbus.plugin import Answer, Context, LoaderIterator, UsageError, hookimpl, warn

from torchbus_checkpoint.loop import course, loaders, variables
from torchbus_checkpoint.loop import frames as checkpoint_frames
from torchbus_checkpoint.loop.course import REMEDY, RESUME_CODE, refuse_hidden
from torchbus_checkpoint.loop.frames import user_frames
from torchbus_checkpoint.loop.history import UNKNOWN, Section
from torchbus_checkpoint.loop.numbering import Numbering, Target, continue_passes
from torchbus_checkpoint.loop.position import LoopPosition
from torchbus_checkpoint.loop.variables import generators_named, put_generators
from torchbus_checkpoint.state.plain import State
from torchbus_rank0.replayed_files import QuietFiles
from torchbus_strategy.script_generators import Generator

ANOTHER_LOOP = (
    "the checkpoint was written in a loop that is not over s.epochs(...), so s.epochs(...) can't"
    " know its epoch: resume with the loop as it was, or begin again with s.epochs(...) in"
    " another folder"
)


HAD_ENDED = (
    "this run had already ended, so nothing was trained, and what the script prints and saves after"
    " its first pass over the data was left out. Loop over s.epochs(...) to run the code after the"
    " loop, add epochs to train further, or begin again in another folder"
)


class LoopReplay:
    """Replays the loop up to a saved position.

    ``saved`` is a ``LoopPosition.state()``, and ``put_back`` restores everything else.
    ``rank_alike`` is True if the checkpoint has the random states of this rank. ``scale`` is the
    old batch size divided by the new one; they differ if the number of ranks has changed.
    """

    hears_trials = False

    def __init__(
        self,
        session: Context,
        position: LoopPosition,
        saved: State,
        put_back: Callable[[], None],
        rank_alike: bool,
        scale: float,
    ) -> None:
        self._session = session
        self._position = position
        self.put_back = put_back
        position.random.alike = rank_alike
        position.workers.load(saved["born"])
        self._saved = saved
        self._target = Target(saved, position)
        self._scale = scale
        self._alike = rank_alike
        self._quiet = contextlib.ExitStack()
        self._numbering = Numbering(session, saved["heads"], saved["reader"], lambda: self.pending)
        session.on_close.callback(self._numbering.close)
        written = variables.written_files(user_frames(session.frame))
        self._files = QuietFiles(session, written)
        session.on_close.callback(self._quiet.close)
        self._compares = rank_alike
        self._in_its_gap = self._hides = False
        self.pending = True

    # Epochs of s.epochs --------------------------------------------------------------------------

    def first_epoch(self, number: int, count: int) -> int:
        """Return the epoch at which loop ``number``, of ``count`` epochs, begins in this run."""
        return self._target.first_epoch(number, count)

    def enter(self, section: Section) -> None:
        """Called when the script enters a section."""
        if self._target.is_in_another_loop:
            raise UsageError(ANOTHER_LOOP)
        if self._target.is_source(section):
            self.arrive(draws_on=True)
        elif self._target.is_at_begin_of(section):
            self.arrive()
        else:
            self.lead()

    def lead(self) -> None:
        """Called when a gap begins. Restores the random states of its start, if they are known."""
        frames, start = user_frames(self._session.frame), self._target.next_start
        if start:
            self._position.random.put_standing(start, frames)
            self._compares = self._alike
            self._in_its_gap = self._target.is_in_this_gap and self._alike
        self._position.gaps.begin(frames)

    # Replayed steps have no effect
    # ----------------------------------------------------------------------

    @hookimpl(tryfirst=True)
    def skip_pass(self, loader: DataLoader[object]) -> bool | None:
        position, frames = self._position, user_frames(self._session.frame)
        if not self.pending or position.history.is_nested(frames):
            return None
        position.variables.look(frames)
        key, saved = self._target.key, self._target.next_pass
        if saved is None:
            self.arrive(draws_on=True)
            return None
        course.refuse_another_loader(saved, loader, position.section, position.passes_begun)
        gap = position.gaps.ended(frames) if self._compares else UNKNOWN
        self._compares &= course.draws_alike(saved, gap, *key)
        if key in self._target.open:
            self._reopen(self._target.open[key], loader, saved.over)
            return None
        if saved.before_training:
            return None
        position.history.begin(saved, frames)
        if saved.trained:
            self._session.bus.hook.batches_skipped(loader=loader, order=None, count=0)
        if self._target.ended and self._target.next_pass is None:
            # the run had ended, and the code after its last pass must see its results
            self.put_back()
        position.variables.fill(frames, self._saved["variables"])
        variables.count(frames, saved.counted)
        self.lead()
        self._silence()
        return True

    def _reopen(self, saved: State, loader: DataLoader[object], over: str) -> None:
        """Reopen a pass with its random states, after a check that its samples are the same."""
        if "samples" in saved:
            loaders.compare(saved["samples"], loader, over)
        self._position.random.put(saved["started"], loader)
        # ranks derive their own streams from these, and return to them after the pass
        put_generators(user_frames(self._session.frame), saved.get("own", {}))

    @hookimpl(tryfirst=True)
    def step_called(self, optimizer: Optimizer) -> Answer | None:
        return Answer() if self.pending else None

    @hookimpl(tryfirst=True)
    def skip_scheduler(self) -> bool | None:
        return self.pending or None

    @hookimpl(tryfirst=True, optionalhook=True)
    def skip_logging(self) -> bool | None:
        return self.pending or None

    @hookimpl(tryfirst=True)
    def save_file(self) -> bool | None:
        return self.pending or None

    @hookimpl(tryfirst=True)
    def before_backward(self) -> None:
        if self.pending and not any(
            one.alive is not None and self._target.is_before_training(one)
            for one in self._position.open
        ):
            raise UsageError(
                "the loop calls backward during the replay of its finished epochs, on batches that"
                f" no loader made: {REMEDY}"
            )

    def save_called(self) -> None:
        """Called at ``s.save``. If this call wrote the checkpoint, the loop has arrived."""
        self._position.gaps.saves += 1
        is_known = self._target.is_in_this_gap and self._target.gap is not None
        if is_known and not self._target.ended and self._target.saves == self._position.gaps.saves:
            self.arrive()

    # Arrival -------------------------------------------------------------------------------------

    @hookimpl(tryfirst=True)
    def batch_wanted(self, loader: DataLoader[object], iterator: LoaderIterator) -> None:
        found = self._position.of(iterator) if self.pending else None
        saved = None if found is None else self._target.open.get((found.section, found.ordinal))
        if saved is not None and (
            saved.get("last", True) or iterator.num_yielded >= saved["taken"]
        ):
            self._position.history.asked(user_frames(self._session.frame))
            self.arrive()

    def arrive(self, draws_on: bool = False) -> None:
        """End the replay, and restore all states.

        With ``draws_on``, the present random states remain if this run has replayed the gap in
        which the checkpoint was written: the draws in that gap are then already made.
        """
        frames = user_frames(self._session.frame)
        refuse_hidden(
            self._saved["counters"],
            checkpoint_frames.around(frames),
            "in this run where it resumes",
            RESUME_CODE,
        )
        standing = self._position.gaps.standing(frames) if draws_on and self._in_its_gap else None
        self.pending = False
        self._files.arrive(self._position.repeated)
        self._position.history.adopt(self._target.passes)
        continue_passes(
            self._position,
            self._target.open,
            self._saved["heads"],
            self._scale,
            self._numbering,
        )
        self.put_back()
        self._position.variables.put_back(frames, self._saved["variables"])
        self.drop(generators_named(frames))
        if standing is None:
            self._position.gaps.go_on(self._target.gap, self._target.saves)
        else:
            self._position.random.put_standing(standing, frames)

    def end(self) -> None:
        """Called if the script ends during the replay. It may only if the earlier run had ended."""
        if not self._target.ended:
            raise UsageError(
                "the script ended before it reached the place where the checkpoint was written: its"
                " loop is shorter than it was, or ends by a value of an evaluation, which a replay"
                " does not have. Make it as long as before, or begin again in another folder, with"
                f" `for epoch in s.epochs(...):` if the loop stops early{RESUME_CODE}"
            )
        if self._hides and self._session.is_main:
            warn(HAD_ENDED)
        self.drop()

    def drop(self, restored: Sequence[Generator] = ()) -> None:
        """Restore the random states except those of the ``restored`` generators; end the replay."""
        self.pending = False
        self._quiet.close()
        self._files.close()
        self._numbering.close()
        self._position.loaders.load(self._saved["loaders"], list(restored))
        self._position.random.put(self._saved, None)
        self._session.bus.unregister(self)
        self._session.seams.refresh()

    def _silence(self) -> None:
        """Hide what the loop prints and logs in skipped epochs, as the values are wrong."""
        self._quiet.close()
        self._quiet.enter_context(contextlib.redirect_stdout(io.StringIO()))
        self._quiet.enter_context(warnings.catch_warnings())
        self._quiet.callback(logging.disable, logging.root.manager.disable)
        logging.disable()
        warnings.simplefilter("ignore", RuntimeWarning)  # NumPy warns about means of empty lists
        self._files.skip()
        self._hides = True
