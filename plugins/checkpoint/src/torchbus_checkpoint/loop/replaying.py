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

import builtins
import contextlib
import functools
import io
import os
import shutil
import sys
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, Any

from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torchbus.plugin import Answer, Context, LoaderIterator, UsageError, hookimpl, warn
from torchbus.runtime.user_code import is_users_module

from torchbus_checkpoint.loop import course, loaders, variables
from torchbus_checkpoint.loop import frames as checkpoint_frames
from torchbus_checkpoint.loop.course import REMEDY, RESUME_CODE, refuse_hidden
from torchbus_checkpoint.loop.frames import user_frames
from torchbus_checkpoint.loop.history import UNKNOWN, Section
from torchbus_checkpoint.loop.numbering import Numbering, Target, continue_passes
from torchbus_checkpoint.loop.position import LoopPosition
from torchbus_checkpoint.loop.variables import generators_named
from torchbus_checkpoint.state.plain import State
from torchbus_rank0.files import caller
from torchbus_rank0.visible_files import holding
from torchbus_rank0.whole_files import absolute, everywhere, imported, is_private, is_special
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
        self._files = QuietFiles(session)
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
                " loop is shorter than it was. Make it as long as before, or begin again in another"
                f" folder{RESUME_CODE}"
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
        """Hide what the loop prints in skipped epochs, as the values are wrong."""
        self._quiet.close()
        self._quiet.enter_context(contextlib.redirect_stdout(io.StringIO()))
        self._quiet.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", RuntimeWarning)  # NumPy warns about means of empty lists
        self._files.skip()
        self._hides = True


REMOVING = {os: ("remove", "unlink"), shutil: ("rmtree",)}
MOVING = {os: ("rename", "replace"), shutil: ("move",)}
COPYING = {
    os: ("link", "symlink", "truncate"),
    shutil: ("copy", "copy2", "copyfile", "copytree"),
}
WRITERS = ("numpy", "pandas", "matplotlib", "PIL", "yaml")
"""Libraries that finish writing a file before the script's call returns."""

TRACKERS = {
    "torch.utils.tensorboard.writer": ("EventFileWriter.add_event",),
    "wandb": ("log", "Run.log"),
    "neptune.handler": ("Handler.append", "Handler.assign", "Handler.extend", "Handler.log"),
    "mlflow": ("log_metric", "log_metrics"),
}
"""Functions that send the values that a script logs."""


@dataclass
class HeldFile:
    """A file that the script opened for writing during the replay.

    ``descriptor`` has the bytes written since then. ``flags`` reopen the file at ``path``. Of the
    bytes, ``head`` came before the first finished pass; None means all. If ``truncates``, these
    bytes replace a file that does not begin with them.
    """

    path: str
    stream: weakref.ref[IO[Any]]
    descriptor: int
    flags: int
    truncates: bool
    head: int | None = None

    def flush(self) -> IO[Any] | None:
        """Flush the stream, and return it; None if it is no longer open."""
        stream = self.stream()
        if stream is None or stream.closed:
            return None
        stream.flush()
        return stream

    def content(self) -> bytes:
        """Return what was written before the first finished pass."""
        size = os.fstat(self.descriptor).st_size if self.head is None else self.head
        return os.pread(self.descriptor, size, 0)

    def go_on(self) -> None:
        """Connect the stream with the file, if the stream is still open."""
        stream = self.flush()
        if stream is not None:
            there = os.open(self.path, self.flags | os.O_CREAT, 0o666)
            os.lseek(there, os.lseek(self.descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
            os.dup2(there, stream.fileno())
            os.close(there)


class QuietFiles:
    """Drops what the script writes during a replay, and does not rename or remove its files.

    What it sends to trackers in finished epochs is dropped, too.

    Existing files stay as they are. A file opened for reading and writing is a copy. A file that is
    still open after the arrival continues at its end. A file that the script wrote only before the
    first finished pass is replaced if its content has changed: an edited file of settings is, a log
    that begins with the same line is not. The script can remove what this replay has created.

    After the arrival, the loop may repeat steps of the killed run until the next checkpoint. Until
    then, removing a file that no longer exists and creating a folder that exists are not errors.
    """

    def __init__(self, session: Context) -> None:
        self._session = session
        self._held: list[HeldFile] = []
        self._made: set[str] = set()
        self._pid = os.getpid()
        self._skips = self._repeats = False
        self._undo, self._forgives = contextlib.ExitStack(), contextlib.ExitStack()
        by_name: dict[object, Callable[[Any], object]] = {open: self._opens}
        replacements = [
            (builtins, "open", self._opens),
            *everywhere(io, "open", self._opens),
            *everywhere(os, "open", self._creates),
        ]
        for table, make in ((MOVING, self._moves), (COPYING, self._copies)):
            for module, names in table.items():
                for name in names:
                    by_name[getattr(module, name)] = make
                    replacements += everywhere(module, name, make)
        replacements += imported(by_name)
        for library, calls in TRACKERS.items():
            for call in calls if library in sys.modules else ():
                kind, _, name = call.rpartition(".")
                owner = sys.modules[library]
                replacements.append((getattr(owner, kind) if kind else owner, name, self._sends))
        session.seams.replace(replacements, self._undo)
        by_name = {os.mkdir: self._makes_folder}
        replacements = [*everywhere(os, "mkdir", self._makes_folder)]
        for module, names in REMOVING.items():
            for name in names:
                by_name[getattr(module, name)] = self._removes
                replacements += everywhere(module, name, self._removes)
        session.seams.replace([*replacements, *imported(by_name)], self._forgives)
        session.on_close.callback(self.close)

    def skip(self) -> None:
        """Called when the loop skips a finished pass."""
        if not self._skips:
            self._skips = True
            for held in self._held:
                held.flush()
                held.head = len(held.content())

    def arrive(self, repeated: contextlib.ExitStack) -> None:
        """Connect streams that are still open with their files, on rank 0.

        ``repeated`` is closed at the next checkpoint, and then missing files are errors again.
        """
        self._skips, self._repeats = False, True
        repeated.callback(self._forgives.pop_all().close)
        self._undo.close()
        for held in self._held if self._session.is_main else ():
            held.flush()
            if held.truncates and not _begins_with(held.path, held.content()):
                with open(held.path, "wb") as file:
                    file.write(held.content())
            held.go_on()
        self.close()

    def close(self) -> None:
        self._skips = False
        self._undo.close()
        self._forgives.close()
        while self._held:
            os.close(self._held.pop().descriptor)

    def _opens(self, original: Callable[..., IO[Any]]) -> Callable[..., IO[Any]]:
        def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> IO[Any]:
            path = absolute(file) if isinstance(file, str | os.PathLike) else ""
            kind = mode.strip("bt+")[:1]
            both = "+" in mode
            exists = bool(path) and os.path.exists(path)
            if (
                not path
                or (kind == "r" and not both)
                or kwargs.get("opener") is not None
                or not (self._skips or exists)
                or (kind == "r" and not exists)
                or (kind == "x" and not self._skips)
                or is_private(path)
                or (exists and is_special(path))
                or not self._is_of_script(() if both else WRITERS)
            ):
                stream = original(file, mode, *args, **kwargs)
                if path and not exists:
                    self._made.add(path)
                return stream
            for held in self._held if self._skips else ():
                held.truncates &= held.path != path
            descriptor = holding(_content(path) if both and exists and kind in "ra" else b"")
            written = os.dup(descriptor)
            stream = original(file, mode, *args, opener=lambda *_: descriptor, **kwargs)
            flags = (os.O_RDWR if both else os.O_WRONLY) | (os.O_APPEND if kind != "r" else 0)
            truncates = kind == "w" and not self._skips
            self._held.append(HeldFile(path, weakref.ref(stream), written, flags, truncates))
            return stream

        return opened

    def _creates(self, original: Callable[..., int]) -> Callable[..., int]:
        def created(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            descriptor = original(path, flags, *args, **kwargs)
            new = os.O_CREAT | os.O_EXCL  # without O_CREAT, the path may be a folder (O_TMPFILE)
            if flags & new == new and kwargs.get("dir_fd") is None:
                self._made.add(absolute(path))
            return descriptor

        return created

    def _makes_folder(self, original: Callable[..., None]) -> Callable[..., None]:
        """Return a mkdir that accepts an existing folder: the interrupted run has created it."""

        def made(path: Any, *args: Any, **kwargs: Any) -> None:
            try:
                original(path, *args, **kwargs)
            except FileExistsError:
                if not (os.path.isdir(path) and self._is_of_script()):
                    raise
            else:
                if kwargs.get("dir_fd") is None:
                    self._made.add(absolute(path))

        return made

    def _removes(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def removed(path: Any, *args: Any, **kwargs: Any) -> Any:
            if self._repeats:
                try:
                    return original(path, *args, **kwargs)
                except FileNotFoundError:
                    if not self._is_of_script():
                        raise
                    return None
            quiet = (
                kwargs.get("dir_fd") is None
                and not self._has_made(path)
                and (self._skips or not is_private(absolute(path)))
                and self._is_of_script()
            )
            return None if quiet else original(path, *args, **kwargs)

        return removed

    def _moves(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def moved(*args: Any, **kwargs: Any) -> Any:
            if not (self._skips and self._is_of_script()):
                return original(*args, **kwargs)
            paths = [*args, *(kwargs[name] for name in ("src", "dst") if name in kwargs)]
            source, target = paths[:2]
            if self._has_made(source) and os.path.isfile(source):
                os.unlink(source)
            return target

        return moved

    def _copies(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def copied(*args: Any, **kwargs: Any) -> Any:
            if self._skips and self._is_of_script():
                return args[1] if len(args) > 1 else kwargs.get("dst")
            return original(*args, **kwargs)

        return copied

    def _sends(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a wrapper that drops calls in finished passes.

        A tracker may store the wrapper, so it must have no effect after the replay.
        """

        @functools.wraps(original)
        def sent(*args: Any, **kwargs: Any) -> Any:
            return None if self._skips else original(*args, **kwargs)

        return sent

    def _has_made(self, path: Any) -> bool:
        """Whether this replay has created the file, or a folder that contains it."""
        where = absolute(path)
        return where in self._made or any(where.startswith(one + os.sep) for one in self._made)

    def _is_of_script(self, through: tuple[str, ...] = WRITERS) -> bool:
        """Whether the script makes this call, itself or by a library in ``through``.

        Another library may still be writing its file when its call returns.
        """
        return os.getpid() == self._pid and is_users_module(caller(*through, __name__))


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _begins_with(path: str, text: bytes) -> bool:
    return _content(path)[: len(text)] == text
