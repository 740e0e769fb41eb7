"""The files of a run whose replay leads its loop to the position of an interrupted run."""

from __future__ import annotations

import builtins
import contextlib
import fnmatch
import functools
import io
import os
import shutil
import sys
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

from torchbus.patches.patching import replace
from torchbus.plugin import Context
from torchbus.runtime.user_code import is_users_module

from torchbus_launch import imports
from torchbus_launch.choice import discard_writes, files_open_for_writing
from torchbus_rank0.files import caller
from torchbus_rank0.visible_files import holding
from torchbus_rank0.whole_files import (
    absolute,
    everywhere,
    file_handlers,
    imported,
    is_private,
    is_special,
)

REMOVING = {os: ("remove", "unlink", "rmdir"), shutil: ("rmtree",)}
MOVING = {os: ("rename", "replace"), shutil: ("move",)}
COPYING = {
    os: ("link", "symlink", "truncate"),
    shutil: ("copy", "copy2", "copyfile", "copytree"),
}
WRITERS = ("numpy", "pandas", "matplotlib", "PIL", "yaml")
"""Libraries that finish writing a file before the script's call returns."""

TRACKERS = {
    "torch.utils.tensorboard.writer": ("EventFileWriter.add_event", "SummaryWriter.add_*"),
    "wandb": ("log", "Run.log"),
    "neptune.handler": ("Handler.append", "Handler.assign", "Handler.extend", "Handler.log"),
    "mlflow": ("log_metric", "log_metrics"),
}
"""Functions that send the values that a script logs, or patterns of their names."""


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


class OpenedBefore:
    """Discards what the script writes in finished epochs to files opened before the block.

    These are the files in ``written``, and those of log handlers. Only regular files that are open
    for writing alone are concerned: the others may also be read.
    """

    def __init__(self, written: Iterable[IO[Any]]) -> None:
        streams = [one.stream for one in file_handlers()]
        self._streams = [*written, *(one for one in streams if one is not None)]
        self._aside: dict[int, int] = {}

    def discard(self) -> None:
        """Begin to discard. A second call has no effect."""
        if not self._aside:
            found = self._flushed() & set(files_open_for_writing())
            self._aside = {number: os.dup(number) for number in found}
            discard_writes(found)

    def _flushed(self) -> set[int]:
        """Flush the files that are still open, and return their descriptors."""
        numbers = set()
        for stream in self._streams:
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
                numbers.add(stream.fileno())
        return numbers

    def restore(self) -> None:
        """Write to the files again."""
        if self._aside:
            self._flushed()
        while self._aside:
            number, file = self._aside.popitem()
            os.dup2(file, number)
            os.close(file)


class QuietFiles:
    """Drops what the script writes during a replay, and does not rename or remove its files.

    What it sends to trackers in finished epochs is dropped, too. ``written`` are the files that the
    script has opened before the block.

    Existing files stay as they are. A file opened for reading and writing is a copy. A file that is
    still open after the arrival continues at its end. A file that the script wrote only before the
    first finished pass is replaced if its content has changed: an edited file of settings is, a log
    that begins with the same line is not. The script can remove what this replay has created, and
    links before the first finished pass. It can create again what it could not remove.

    After the arrival, the loop may repeat steps of the killed run until the next checkpoint. Until
    then, removing a file that no longer exists and creating a folder that exists are not errors.
    """

    def __init__(self, session: Context, written: Iterable[IO[Any]]) -> None:
        self._session = session
        self._before = OpenedBefore(written)
        self._held: list[HeldFile] = []
        self._made: set[str] = set()
        self._unremoved: set[str] = set()
        self._pid = os.getpid()
        self._skips = self._repeats = self._is_over = False
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
        session.seams.replace(replacements, self._undo)
        later = {library: partial(self._silence, library) for library in TRACKERS}
        for library in [one for one in later if one in sys.modules]:
            later.pop(library)()
        self._undo.callback(imports.follow(later))
        by_name = {os.mkdir: self._makes_folder}
        replacements = [*everywhere(os, "mkdir", self._makes_folder)]
        for module, names in REMOVING.items():
            for name in names:
                by_name[getattr(module, name)] = self._removes
                replacements += everywhere(module, name, self._removes)
        session.seams.replace([*replacements, *imported(by_name)], self._forgives)
        session.on_close.callback(self.close)

    def _silence(self, tracker: str) -> None:
        module, note = sys.modules[tracker], self._session.seams.note
        for call in TRACKERS[tracker]:
            kind, _, pattern = call.rpartition(".")
            owner = getattr(module, kind) if kind else module
            for name in fnmatch.filter(dir(owner), pattern):
                undo = replace(owner, name, self._sends, becomes_inert=True)
                self._undo.callback(note(f"{tracker}.{name}", undo))

    def skip(self) -> None:
        """Called when the loop skips a finished pass."""
        if not self._skips:
            self._skips = True
            self._before.discard()
            for held in self._held:
                held.flush()
                held.head = len(held.content())

    def arrive(self, repeated: contextlib.ExitStack) -> None:
        """Connect streams that are still open with their files, on rank 0.

        ``repeated`` is closed at the next checkpoint, and then missing files are errors again.
        """
        self._skips, self._repeats = False, True
        self._before.restore()
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
        """Restore all functions, and drop what was written."""
        self._skips, self._is_over = False, True
        self._before.restore()
        self._undo.close()
        self._forgives.close()
        while self._held:
            os.close(self._held.pop().descriptor)

    def _opens(self, original: Callable[..., IO[Any]]) -> Callable[..., IO[Any]]:
        def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> IO[Any]:
            if self._is_over:  # a log handler stores the function that it opens its file with
                return original(file, mode, *args, **kwargs)
            path = absolute(file) if isinstance(file, str | os.PathLike) else ""
            if path in self._unremoved:
                mode = mode.replace("x", "w")
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
            new = os.O_CREAT | os.O_EXCL  # without O_CREAT, the path may be a folder (O_TMPFILE)
            is_new = flags & new == new and kwargs.get("dir_fd") is None
            if is_new and absolute(path) in self._unremoved:
                return original(path, flags & ~os.O_EXCL, *args, **kwargs)
            descriptor = original(path, flags, *args, **kwargs)
            if is_new:
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
                and (self._skips or not (os.path.islink(path) or is_private(absolute(path))))
                and self._is_of_script()
            )
            if quiet:
                self._unremoved.add(absolute(path))
                return None
            return original(path, *args, **kwargs)

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
        return os.getpid() == self._pid and is_users_module(caller(*through))


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _begins_with(path: str, text: bytes) -> bool:
    return _content(path)[: len(text)] == text
