"""Automatic checkpoints, resume, and ``s.save``, ``s.load``, ``s.register``, ``s.epochs``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Literal, TypeVar

from torchbus.plugin import Context, LoaderIterator, UsageError, expect, hookimpl, needs

from torchbus_checkpoint import events
from torchbus_checkpoint.automatic import AutomaticSaves
from torchbus_checkpoint.loop import loaders
from torchbus_checkpoint.loop.contents import ObjectFinder
from torchbus_checkpoint.loop.course import explain_failure
from torchbus_checkpoint.loop.position import LoopPosition
from torchbus_checkpoint.loop.steps import Epochs, LoopSteps
from torchbus_checkpoint.options import CheckpointOptions, refuse_url
from torchbus_checkpoint.requests import Requests, When, seconds
from torchbus_checkpoint.resume import Resume
from torchbus_checkpoint.state.snapshot import LoopSnapshot

Thing = TypeVar("Thing")
NONE_TO_LOAD = (
    "s.load(None): there is no checkpoint to load. best(folder) returns None if no checkpoint in"
    " the folder has a value: pass monitor='NAME', and call s.log('NAME', value) in the loop"
)


@needs(
    "checkpoint",
    "local_copy",
    "every_n_steps",
    "every_n_epochs",
    "every_minutes",
    "keep",
    "monitor",
    "mode",
    "resume",
    "time_limit",
    "load_best",
)
@needs("monitor", "load_best")
@needs("monitor", "mode", remedy="early_stop_mode=... for early_stop=...")
class Checkpoint:
    """Checkpoints of the whole loop, and its exact resume.

    Args:
        checkpoint: the folder for automatic checkpoints, which all hosts share, or its URL, as in
            "s3://bucket/run". With None there are only ``s.save`` and ``s.load``.
        local_copy: with a URL, the folder that checkpoints are written to first, by default
            "checkpoints/s3/bucket/run".
        every_n_steps, every_n_epochs, every_minutes: how often to write a checkpoint, in optimizer
            steps, epochs or minutes. Several may be given. The default is every epoch.
        keep: how many checkpoints to keep: the last ones, or with ``monitor`` the best ones and
            the last of each training. None keeps all.
        monitor: the name of a value given to ``s.log``, which orders the checkpoints.
        mode: "min" if the lowest value is best, or "max".
        load_best: whether models get the weights of the best checkpoint at the end of the block. If
            the block trains several models in turn, the last training's checkpoints count.
        resume: "auto" resumes from the last whole checkpoint in the folder; "never" starts from the
            beginning, and rejects a folder that has checkpoints; a path names one.
        async_save: whether a thread writes the checkpoints, also those of ``s.save``. The loop
            waits only for a copy in main memory.
        safetensors: has no effect since format 3, whose weights are always in this format.
        sharded_save: whether each rank writes its parts of models and optimizers, for
            strategy="fsdp". Such checkpoints resume on any number of ranks.
        time_limit: a timedelta, or "11:50:00". After this time the session saves and leaves, as if
            it had received SIGUSR1.

    With a folder, the session saves at the next step boundary after SIGTERM and SIGUSR1, and leaves
    with exit status 128 + the signal's number.

    Adds ``s.save(path)``, ``s.load(path)``, ``s.register(name, object)`` and ``for epoch in
    s.epochs(10)``, which all ranks must call, and ``s.save_and_leave()``, which any rank may call.
    """

    owns = ("checkpoints",)
    verbs = ("save", "load", "register", "epochs", "save_and_leave")
    declares_events = events
    hears_trials = False
    tried_with = ({"checkpoint": "here", "monitor": "error", "load_best": True},)

    def __init__(
        self,
        checkpoint: str | os.PathLike[str] | None = None,
        *,
        local_copy: str | os.PathLike[str] | None = None,
        every_n_steps: int | None = None,
        every_n_epochs: int | None = None,
        every_minutes: float | None = None,
        keep: int | None = 3,
        monitor: str | None = None,
        mode: Literal["min", "max"] = "min",
        load_best: bool = False,
        resume: str | os.PathLike[str] = "auto",
        async_save: bool = False,
        safetensors: bool = False,
        sharded_save: bool = False,
        time_limit: str | timedelta | None = None,
    ) -> None:
        self._options = CheckpointOptions(
            checkpoint,
            local_copy=local_copy,
            keep=keep,
            monitor=monitor,
            mode=mode,
            load_best=load_best,
            resume=resume,
            async_save=async_save,
            safetensors=safetensors,
            sharded_save=sharded_save,
        )
        self._when = When(every_n_steps, every_n_epochs, every_minutes)
        self._time_limit_s = None if time_limit is None else seconds(time_limit)
        self._automatic: AutomaticSaves | None = None
        self.companions = ("log",) if monitor is not None else ()

    # Events --------------------------------------------------------------------------------------

    @hookimpl
    def session_start(self, session: Context) -> None:
        self._session = session
        self._places = Places(session)
        self._position = LoopPosition(session)
        self._finder = ObjectFinder(session)
        self._steps = LoopSteps(session.steps.follow(), self._boundary)
        self._epochs = Epochs(session, self._position, self._steps, lambda: self._boundary(None))
        self._snapshot = LoopSnapshot(
            session, self._options, self._finder, self._position, self._steps, self._epochs
        )
        self._resume = Resume(
            session,
            self._options,
            self._snapshot,
            self._position,
            self._epochs,
            lambda: self._when.saved(self._steps.count, self._steps.epochs),
        )
        session.bus.register(self._position, "checkpoint.position")
        session.bus.register(self._finder, "checkpoint.contents")
        session.bus.register(self._steps, "checkpoint.steps")
        self._position.begin()
        session.batches.follow(
            "" if self._options.folder is None else "the position in a checkpoint"
        )
        if self._options.folder is not None and not session.dry_run:
            self._begin_in_folder(self._options.folder)

    @hookimpl
    def after_backward(self) -> None:
        if self._options.folder is not None:
            loaders.refuse_hidden_batches(self._session)

    @hookimpl
    def after_optimizer_step(self) -> None:
        if self._position.trains:
            return
        if self._options.folder is not None and not self._position.is_known:
            raise UsageError(
                "checkpoint=... with a loop that takes no batch from a DataLoader: nothing shows"
                " where the loop is. Write `for step in s.epochs(...):` instead of `range(...)`"
            )
        self._position.training_begins()

    @hookimpl(optionalhook=True)
    def monitored_name(self) -> str | None:
        return self._options.monitor

    @hookimpl(optionalhook=True)
    def monitored_value(self, name: str, value: float) -> None:
        if name == self._options.monitor and self._automatic is not None:
            self._automatic.judge(value)

    @hookimpl
    def session_end(self, error: BaseException | None) -> None:
        replay = self._resume.pending
        if error is not None:
            in_epochs = self._position.section[0] % 2 == 1
            instead = explain_failure(error, in_epochs) if replay is not None else None
            if instead is not None:
                raise instead from error
        elif replay is not None:
            replay.end()
        elif self._automatic is not None:
            self._automatic.at_end()
        self._snapshot.wait()
        if error is None and self._automatic is not None:
            self._automatic.load_best()

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]]:
        lines = [] if self._automatic is None else self._automatic.explain_lines()
        if self._resume.found is not None:
            lines.append(f"resumed from {self._resume.found}")
        return {"checkpoints": lines or ["when s.save is called"]}

    # Verbs ---------------------------------------------------------------------------------------

    def register(self, name: str, thing: Thing) -> Thing:
        """Put an object with ``state_dict`` and ``load_state_dict`` into every checkpoint.

        Register the object on all ranks, because each loads rank 0's state. Returns the object.
        Raises UsageError for an object without these methods, and for a name in use.
        """
        self._snapshot.register(name, thing)
        return thing

    def epochs(self, count: int) -> Iterator[int]:
        """Iterate over ``range(count)`` in the outermost loop, from where an interrupted run was.

        An "epoch" may be a single step. All ranks must run the loop. Raises UsageError if ``count``
        is not an int.
        """
        expect("s.epochs: count", count, int, "a number of epochs")
        return self._epochs.run(count)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint to a folder with this path.

        All ranks must call this, at the end of a batch or an epoch. Raises UsageError for a URL,
        and CheckpointError if the checkpoint would not be complete or can't be written.
        """
        if self._resume.pending is not None:
            return self._resume.pending.save_called()
        loaders.refuse_hidden_batches(self._session)
        refuse_url(path, f"s.save({str(path)!r})")
        self._position.gaps.saves += 1
        self._snapshot.write(self._places.to_write(path))

    def load(self, path: str | os.PathLike[str] | None) -> None:
        """Restore a checkpoint. All ranks must call this.

        Before the first step of this session, this also restores the position of the loop, by
        replay. Until the next step, the session then writes no checkpoint. A trial run
        (``fast_dev_run``) has no checkpoints, so it ignores None. Raises UsageError for None
        otherwise, for a URL, and during a resume, and CheckpointError for a checkpoint that is
        damaged or belongs to another loop.
        """
        if path is None and self._session.dry_run:
            return
        if path is None:
            raise UsageError(NONE_TO_LOAD)
        refuse_url(path, f"s.load({str(path)!r})")
        self._resume.refuse_while_pending(path)
        self._resume.load(self._places.to_read(path), self._steps.count)
        self._steps.loaded = self._position.trains

    def save_and_leave(self) -> None:
        """Request that all ranks save at their next common step boundary and exit, as SIGUSR1 does.

        One rank is enough. It may call this in any thread, at any time, and repeatedly. Raises
        UsageError if the option ``checkpoint`` is not set.
        """
        if self._session.dry_run:
            return
        if self._automatic is None:
            raise UsageError("s.save_and_leave() needs checkpoint=..., the folder that it saves to")
        self._automatic.requests.ask()

    def _boundary(self, iterator: LoaderIterator | None) -> None:
        if self._automatic is not None and self._resume.pending is None:
            self._automatic.boundary(iterator)

    def _begin_in_folder(self, folder: Path) -> None:
        """Resume from the folder's checkpoint, and write new ones to it."""
        self._resume.from_folder(folder)
        self._automatic = AutomaticSaves(
            self._session,
            self._options,
            self._when,
            Requests(self._session, lambda: self._when.time_is_up, self._time_limit_s),
            (self._finder, self._position, self._steps),
            self._snapshot,
            self._resume.mirror,
        )


BESIDE = ".fast_dev_run"


class Places:
    """Returns the paths that the script passes or, in a trial run, temporary ones beside them."""

    def __init__(self, session: Context) -> None:
        self._session = session
        self._tried: set[Path] = set()
        if session.dry_run and session.is_main:
            session.on_close.callback(self._remove)

    def to_write(self, path: str | os.PathLike[str]) -> Path:
        """Return where ``s.save(path)`` writes."""
        final = Path(path).absolute()
        if not self._session.dry_run:
            return final
        self._tried.add(final)
        return _beside(final)

    def to_read(self, path: str | os.PathLike[str]) -> Path:
        """Return where ``s.load(path)`` reads."""
        final = Path(path).absolute()
        return _beside(final) if final in self._tried else final

    def _remove(self) -> None:
        for path in self._tried:
            shutil.rmtree(_beside(path), ignore_errors=True)


def _beside(path: Path) -> Path:
    return path.with_name(path.name + BESIDE)
