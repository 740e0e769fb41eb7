"""Files change on rank 0, in the order of the program. The other ranks see what rank 0 sees.

A rank that reaches a change (open for writing, save, remove, rename, copy, make a folder) waits
until rank 0 has made it. If rank 0 does not make that change, the rank makes it itself.
"""

from __future__ import annotations

import builtins
import io
import os
import pathlib
import shutil
import sysconfig
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from torchbus.compat.python import current_frame
from torchbus.plugin import Unsupported, hookimpl

from torchbus_rank0.changes import Changes, WaitResult
from torchbus_rank0.libraries import follow_libraries
from torchbus_rank0.visible_files import Seeing, holding
from torchbus_rank0.whole_files import (
    WholeFiles,
    absolute,
    everywhere,
    imported,
    is_private,
    is_special,
    of_handlers,
)

if TYPE_CHECKING:
    from torchbus.patches.active import Replacement
    from torchbus.plugin import Context

# Which argument is the path that changes; for a move, the target too.
PATHS: dict[ModuleType, dict[str, tuple[int, ...]]] = {
    os: {
        **dict.fromkeys(("mkdir", "makedirs", "remove", "unlink", "rmdir", "truncate"), (0,)),
        **dict.fromkeys(("rename", "replace"), (0, 1)),
        **dict.fromkeys(("link", "symlink"), (1,)),
    },
    shutil: {
        "rmtree": (0,),
        "move": (0, 1),
        **dict.fromkeys(("copy", "copy2", "copyfile", "copytree"), (1,)),
    },
}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
ARGUMENTS = {"dst": 1, "src": 0, "path": 0, "name": 0, "fname": 0}
HDF5 = (
    "h5py adds to {} on every rank, and it is too large for each to have a copy of it: write it"
    " under `if s.is_main:`, with s.barrier() before another rank reads it, or write a new file"
)
# in these modules, ranks agree on files without this plugin
SYNCHRONISED_MODULES = ("torchbus", "torch.distributed", "torch._")
SEAMS = ("torchbus_rank0", "torchbus.patches", "pluggy")
STANDARD = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})
INSTALLED = tuple({sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib")})

T = TypeVar("T")


class SharedFiles:
    def __init__(self, session: Context) -> None:
        assert session.job is not None
        self._session = session
        self._changes = Changes(session, session.job)
        self._whole = WholeFiles()
        self._pid = os.getpid()
        self._launched = session.world.launched_by in ("session", "fork")
        self._saved: set[str] = set()
        self._local_paths: set[str] = set()
        self._descriptors: dict[int, Callable[[], None]] = {}  # to call once one is closed
        self._inside = threading.local()
        self._seeing: Seeing | None = None

    @hookimpl
    def session_start(self, session: Context) -> None:
        tempfile.gettempdir()  # its first call removes a file under a lock, so it comes first
        by_name: dict[object, Callable[[Any], object]] = {open: self._opens}
        replacements: list[Replacement] = [
            (builtins, "open", self._opens),
            *everywhere(io, "open", self._opens),
            *of_handlers(self._opens),
            (os, "open", self._opens_descriptor),
            (os, "close", self._closes_descriptor),
            (pathlib.Path, "touch", partial(self._changed, "touch", (0,))),
        ]
        for module, functions in PATHS.items():
            for name, places in functions.items():
                make = cache(partial(self._changed, name, places))  # one function in all places
                by_name[getattr(module, name)] = make
                replacements += everywhere(module, name, make)
        session.seams.replace([*imported(by_name), *replacements], session.on_close)
        follow_libraries(session, self)
        if not session.is_main:
            self._seeing = Seeing(session, self._changes, self._is_seen)

    @hookimpl
    def session_end(self) -> None:
        self._changes.end()

    def _is_seen(self, path: str) -> bool:
        return self._is_shared(path) and not self._is_inside() and not self._is_local(path)

    def changing(self, kind: str, place: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Return a decorator for a function that changes the path in argument ``place``."""
        return partial(self._changed, kind, (place,))

    def waiting_after(
        self, kind: str, place: int
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Return a decorator for a function that all ranks call, and that writes on rank 0."""

        def waiting(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                result = original(*args, **kwargs)
                path = self._path(args[place] if len(args) > place else None)
                if self._is_seen(path):
                    if self._session.is_main:
                        self._changes.publish(kind, path, None)
                    else:
                        self._changes.find(kind, path)
                return result

            return call

        return waiting

    def note_once(self, path: str, text: str) -> None:
        """Let rank 0 show a line about a shared path that this rank changes without rank 0."""
        if self._is_shared(path) and str(self._session.rank) not in os.path.basename(path):
            self._changes.note_once(text)

    @hookimpl
    def save_file(self, path: str, write: Callable[[str], None]) -> bool:
        self._saved.add(absolute(path))
        self._change("save", [absolute(path)], lambda: self._whole.write(path, write))
        return True

    def _changed(
        self, name: str, places: tuple[int, ...], original: Callable[..., Any]
    ) -> Callable[..., Any]:
        kind = {"unlink": "remove", "copy2": "copy", "copyfile": "copy"}.get(name, name)

        def changed(*args: Any, **kwargs: Any) -> Any:
            given = {places[0]: kwargs.get("f"), **dict(enumerate(args)), **_by_place(kwargs)}
            paths = [self._path(given.get(place)) for place in places]
            if _has_random_name() and os.getpid() == self._pid:
                return self._make_own(paths[0], lambda: original(*args, **kwargs))
            if not any(map(self._is_shared, paths)) or _at_descriptor(kwargs):
                return original(*args, **kwargs)
            self._saved.update(paths[1:])
            return self._change(kind, paths, lambda: original(*args, **kwargs))

        return changed

    def _change(self, kind: str, paths: list[str], make: Callable[[], Any]) -> Any:
        """Make a change on rank 0; let the others wait for it."""
        if self._is_inside() or self._is_local(paths[0]):
            return None if self._gives_way(kind, paths) else self._make(make)
        if self._session.is_main:
            return self._make_for_all(kind, paths, make)
        found = self._find(kind, paths)
        if found.is_local or _raise(found, paths):
            return self._make(make)
        return paths[-1] if kind in ("copy", "move", "copytree") else None

    def _gives_way(self, kind: str, paths: list[str]) -> bool:
        """Remove this rank's file, and return True, if rank 0 moves a file to the same target."""
        if (
            kind not in ("rename", "replace", "move")
            or self._is_inside()
            or self._is_local(paths[1])
        ):
            return False
        if self._changes.find(f"{kind} to", paths[1]).is_local:
            return False
        with self._within():
            shutil.rmtree(paths[0]) if os.path.isdir(paths[0]) else os.remove(paths[0])
        return True

    def _make(self, make: Callable[[], Any]) -> Any:
        with self._within():
            return make()

    def _make_own(self, path: str, make: Callable[[], T]) -> T:
        """Make a file or folder that has another name on each rank."""
        result = make()
        if not self._session.is_main:
            self._local_paths.add(path)
        return result

    def _make_for_all(self, kind: str, paths: list[str], make: Callable[[], Any]) -> Any:
        failure: tuple[int, str] | str | None = ""
        for path in [*paths, *_beside(kind, paths)]:
            self._changes.comes(path)
        try:
            result = self._make(make)
            failure = None
            return result
        except OSError as error:
            failure = (error.errno, error.strerror or "") if error.errno else ""
            raise
        finally:
            for path in paths[1:]:
                self._changes.publish(f"{kind} to", path, failure)
            self._changes.publish(kind, paths[0], failure)

    def _opens(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            changes = any(letter in mode for letter in "wax+")
            path = self._path(file)
            if (
                not (changes or not self._session.is_main)
                or not self._is_seen(path)
                or (changes and is_special(path))
                or kwargs.get("opener") is not None
            ):
                return original(file, mode, *args, **kwargs)
            if not changes:
                assert self._seeing is not None
                return self._seeing.read(
                    file, lambda **held: original(file, mode, *args, **held, **kwargs)
                )
            if self._session.is_main:
                stream, number = self._open_first(
                    path, lambda: original(file, mode, *args, **kwargs), "a" in mode
                )
                _on_close(stream, lambda: self._changes.close(path, number))
                return stream
            found = self._find("open", [path])
            if found.is_local or _raise(found, [path]):
                return original(file, mode, *args, **kwargs)
            unnamed = _unnamed(path if "r" in mode else None)
            stream = original(file, mode, *args, opener=lambda *_: unnamed, **kwargs)
            if found.change is not None:
                number = found.number
                _on_close(stream, lambda: self._changes.wait_until_closed(path, number))
            return stream

        return opened

    def _opens_descriptor(self, original: Callable[..., int]) -> Callable[..., int]:
        """Like ``_opens``, for a script that writes or locks a file by its descriptor."""

        def opened(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            shared = self._path(path)
            if flags & os.O_CREAT and os.getpid() == self._pid and _has_random_name():
                return self._make_own(shared, lambda: original(path, flags, *args, **kwargs))
            if (
                not flags & WRITES
                or not self._is_seen(shared)
                or is_special(shared)
                or kwargs.get("dir_fd") is not None
            ):
                return original(path, flags, *args, **kwargs)
            if is_standard(current_frame(1)):
                return original(path, flags, *args, **kwargs)
            if self._session.is_main:
                descriptor, number = self._open_first(
                    shared, lambda: original(path, flags, *args, **kwargs)
                )
                return self._close_with(descriptor, lambda: self._changes.close(shared, number))
            found = self._find("open", [shared])
            if found.is_local or _raise(found, [shared]):
                return original(path, flags, *args, **kwargs)
            number = found.number
            return self._close_with(
                _unnamed(None if flags & os.O_TRUNC else shared),
                lambda: self._changes.wait_until_closed(shared, number),
            )

        return opened

    def _close_with(self, descriptor: int, call: Callable[[], None]) -> int:
        self._descriptors[descriptor] = call
        return descriptor

    def _closes_descriptor(self, original: Callable[[int], None]) -> Callable[[int], None]:
        def closed(fd: int) -> None:
            call = self._descriptors.pop(fd, None) if os.getpid() == self._pid else None
            original(fd)
            if call is not None:
                with suppress(RuntimeError, AssertionError):  # the store ends with rank 0
                    call()

        return closed

    def opening_hdf5(self, original: Callable[..., None]) -> Callable[..., None]:
        """Like ``_opens``, for ``h5py.File``, which writes and locks by native code."""

        def init(file: Any, name: Any, mode: str = "r", *args: Any, **kwargs: Any) -> None:
            path, changes = self._path(name), mode != "r"
            if (
                not (changes or not self._session.is_main)
                or not self._is_seen(path)
                or kwargs.get("driver", args) not in (None, ())
            ):
                return original(file, name, mode, *args, **kwargs)
            if not changes:  # a lock would block rank 0's next change
                return original(file, name, mode, **{"locking": False, **kwargs})
            if self._session.is_main:
                make = partial(original, file, name, mode, **kwargs)
                _, number = self._open_first(path, make)
                return _on_close(file, lambda: self._changes.close(path, number))
            assert self._seeing is not None
            there = self._seeing.content(path)
            found = self._find("open", [path])
            if found.is_local or _raise(found, [path]):
                return original(file, name, mode, **kwargs)
            if mode in ("a", "r+") and there is None:
                raise Unsupported(HDF5.format(path))
            adds = there if mode in ("a", "r+") else None
            stream = os.fdopen(holding(adds or b""), "w+b" if not adds else "r+b")
            original(file, stream, "r+" if adds else "w", **kwargs)
            return _on_close(file, lambda: self._changes.wait_until_closed(path, found.number))

        return init

    def _find(self, kind: str, paths: list[str]) -> WaitResult:
        found = self._changes.find(kind, paths[0])
        if found.change is None and found.is_local:
            self._local_paths.update(paths)
        return found

    def _open_first(self, path: str, make: Callable[[], T], appends: bool = False) -> tuple[T, int]:
        """Open a file on rank 0; return the file, and the number of the change."""
        self._changes.comes(path, appends)
        try:
            stream = make()
        except OSError as error:
            self._changes.publish("open", path, (error.errno or 0, error.strerror or ""))
            raise
        return stream, self._changes.publish("open", path, None, is_open=True)

    def _path(self, file: object) -> str:
        return absolute(file) if isinstance(file, str | os.PathLike) else ""

    def _is_shared(self, path: str) -> bool:
        """Whether the path belongs to the script, and all ranks change it."""
        if not path or os.getpid() != self._pid or self._session.world.store is None:
            return False
        return path in self._saved or (self._launched and not is_private(path))

    def _is_local(self, path: str) -> bool:
        return bool(self._local_paths) and any(
            parent in self._local_paths
            for parent in (path, *map(str, pathlib.PurePath(path).parents))
        )

    def _is_inside(self) -> bool:
        return getattr(self._inside, "depth", 0) > 0 or caller().startswith(SYNCHRONISED_MODULES)

    @contextmanager
    def _within(self) -> Iterator[None]:
        self._inside.depth = getattr(self._inside, "depth", 0) + 1
        try:
            yield
        finally:
            self._inside.depth -= 1


def caller(*through: str) -> str:
    """Return the module that changes a file: the innermost outside this package, Python's own
    library, and the modules in ``through``.

    torch.save, which the patch replaces, belongs to the script.
    """
    frame = current_frame(1)
    while frame is not None and (
        frame.f_globals.get("__name__", "").startswith((*SEAMS, *through)) or is_standard(frame)
    ):
        frame = frame.f_back  # type: ignore[assignment]
    return "" if frame is None else str(frame.f_globals.get("__name__", ""))


def is_standard(frame: FrameType) -> bool:
    """Whether Python's own library runs in the frame."""
    name = frame.f_code.co_filename
    return name.startswith((*STANDARD, "<frozen")) and not name.startswith(INSTALLED)


def _raise(found: WaitResult, paths: list[str]) -> bool:
    """Raise rank 0's OSError. Return whether this rank must determine the error itself."""
    failure = found.change.failure if found.change is not None else None
    if failure is None or failure == "":
        return failure == ""
    raise OSError(failure[0], failure[1], paths[0], None, *paths[1:2])


def _beside(kind: str, paths: list[str]) -> list[str]:
    """Return the other paths that a change makes: missing parent folders."""
    parents = map(str, pathlib.PurePath(paths[0]).parents) if kind == "makedirs" else ()
    return [parent for parent in parents if not os.path.exists(parent)]


def _by_place(kwargs: dict[str, Any]) -> dict[int, Any]:
    return {ARGUMENTS[name]: value for name, value in kwargs.items() if name in ARGUMENTS}


def _has_random_name() -> bool:
    """Whether ``tempfile`` makes the file for the script."""
    return current_frame(2).f_globals.get("__name__") == "tempfile"


def _at_descriptor(kwargs: dict[str, Any]) -> bool:
    return any(kwargs.get(name) is not None for name in ("dir_fd", "src_dir_fd", "dst_dir_fd"))


def _unnamed(path: str | None) -> int:
    """Open a file without a name, so that what another rank writes is deleted on closing.

    The file first has the content of ``path``, if given.
    """
    with tempfile.TemporaryFile() as file:
        if path is not None:
            with suppress(FileNotFoundError), io.FileIO(path) as source:
                shutil.copyfileobj(source, file)
                file.flush()
                file.seek(0)
        return os.dup(file.fileno())


def _on_close(stream: Any, call: Callable[[], None]) -> None:
    """Call a function once the stream is closed, also by its last reference."""
    weak = weakref.ref(stream)

    def close() -> None:
        it = weak()
        if it is None or not it or getattr(it, "closed", False):
            return
        type(it).close(it)
        with suppress(RuntimeError, AssertionError):  # the store ends with rank 0
            call()

    stream.close = close
