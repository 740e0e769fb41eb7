"""Atomic files: written under a temporary name, then renamed; with locks."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from os import stat as status_of
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from torchbus.compat.python import OPENED_BY, PATHLIBS
from torchbus.runtime.user_code import is_users_module

if TYPE_CHECKING:
    from torchbus.patches.active import Replacement


FUNCTIONS = (FunctionType, BuiltinFunctionType)
IMPORTING = ("bz2", "lzma")


def everywhere(
    owner: ModuleType, name: str, make: Callable[[Any], object]
) -> Iterator[Replacement]:
    """Yield the replacements of a function of ``os`` or ``io``, also for pathlib."""
    yield owner, name, make
    if PATHLIBS is not None and name in vars(PATHLIBS):
        yield PATHLIBS, name, make


def imported(made: Mapping[object, Callable[[Any], object]]) -> Iterator[Replacement]:
    """Yield replacements where a module of the script, bz2 or lzma has imported such a function."""
    # copy() does not run the garbage collector, or another thread that imports, as a list might
    modules = {id(module): (name, module) for name, module in sys.modules.copy().items()}
    for name, module in modules.values():
        if name in IMPORTING or is_users_module(name):
            for attribute, value in vars(module).copy().items():
                if isinstance(value, FUNCTIONS) and value in made:
                    yield module, attribute, made[value]


def file_handlers() -> list[logging.FileHandler]:
    """Return the log handlers that write files."""
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    handlers = [one for logger in loggers for one in getattr(logger, "handlers", ())]
    return [one for one in handlers if isinstance(one, logging.FileHandler)]


def of_handlers(make: Callable[[Any], object]) -> Iterator[Replacement]:
    """Yield the replacements of ``open`` for log handlers that exist: they may open files later."""
    return ((one, OPENED_BY, make) for one in file_handlers() if hasattr(one, OPENED_BY))


def absolute(path: Any) -> str:
    """Return the absolute path of anything that Python's functions accept as a path.

    An empty path stays empty.
    """
    name = os.fsdecode(path)
    return os.path.abspath(name) if name else ""


def is_private(path: str) -> bool:
    """Return whether a file does not belong to the script.

    These are devices (/dev except /dev/shm), files in /proc, /sys and hidden folders at home, and
    files in the system's temporary folder, unless the script's working directory contains them.
    """
    temporary, home = tempfile.gettempdir() + os.sep, os.path.join(os.path.expanduser("~"), ".")
    is_device = path.startswith("/dev/") and not path.startswith("/dev/shm/")
    if is_device or path.startswith(("/proc/", "/sys/", home)):
        return True
    return path.startswith(temporary) and not f"{path}{os.sep}".startswith(os.getcwd() + os.sep)


def is_special(path: str) -> bool:
    """Return whether the path is something other than a regular file: a folder, pipe or device.

    This makes only one system call, because another rank may move the file away meanwhile.
    """
    try:
        return not stat.S_ISREG(status_of(path).st_mode)
    except OSError:
        return False


if sys.platform != "win32":
    import fcntl


def try_lock(descriptor: int) -> bool | None:
    """Try to lock an open file, and return whether this process holds the lock.

    Returns None if the file system has no locks (Lustre without ``-o flock``).
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


class OpenHere:
    """A descriptor that forked processes close.

    Otherwise, they would hold its lock until they end.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        close = weakref.WeakMethod(self.close)
        os.register_at_fork(after_in_child=lambda: (alive := close()) and alive())

    def close(self) -> None:
        """Close the descriptor, once."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)


SUFFIX = ".torchbus"
NAME = re.compile(rf"\..+\.[a-z0-9_]{{8}}{re.escape(SUFFIX)}")


def make(folder: str, name: str) -> tuple[int, str]:
    """Make an empty hidden file; return the descriptor that locks it, and its path.

    Raises OSError.
    """
    while True:
        descriptor, path = tempfile.mkstemp(dir=folder, prefix=f".{name}.", suffix=SUFFIX)
        if try_lock(descriptor) is not False and os.path.exists(path):
            return descriptor, path
        os.close(descriptor)  # another process is removing the file, or has removed it


def sweep(folder: str) -> None:
    """Remove the temporary files of killed processes.

    Without locks in the file system, it is unknown which files are left over, so all stay.
    """
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for name in [entry.name for entry in entries if NAME.fullmatch(entry.name)]:
            with contextlib.suppress(OSError):
                _remove_dead(os.path.join(folder, name))


def _remove_dead(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if try_lock(descriptor):
            os.unlink(path)
    finally:
        os.close(descriptor)


class WholeFiles:
    """Writes whole files, and once per folder removes temporary files of killed runs."""

    def __init__(self) -> None:
        self._swept: set[str] = set()

    def write(self, path: str, write: Callable[[str], None]) -> None:
        folder = os.path.dirname(os.path.realpath(path))
        if folder not in self._swept:
            self._swept.add(folder)
            sweep(folder)
        write_whole(path, write)


def write_whole(path: str, write: Callable[[str], None]) -> None:
    """Write next to the path and rename: a reader sees the old file or the whole new one."""
    if is_special(path):
        return write(path)
    folder, name = os.path.split(os.path.realpath(path))
    try:
        descriptor, temporary = make(folder, name)
    # The folder is missing, or it allows writing files but not creating them. The loop then gets
    # torch's own error, if any.
    except OSError:
        return write(path)
    try:
        write(temporary)
        os.chmod(temporary, _mode(path))
        os.replace(temporary, os.path.realpath(path))
    except BaseException:
        os.unlink(temporary)
        raise
    finally:
        os.close(descriptor)


def _mode(path: str) -> int:
    with contextlib.suppress(FileNotFoundError):
        return os.stat(path).st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
